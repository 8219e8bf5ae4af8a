"""Explanations of recorded calls."""
