"""Contexts and previews."""
