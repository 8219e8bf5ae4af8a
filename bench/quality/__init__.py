"""Visibility of the values that a model will need, measured over HTTP on recorded sessions."""
