"""Policies: an operator's settings for a view, validated, with a default and a unit for every field."""
