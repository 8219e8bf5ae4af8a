"""Rendering of a planned context to the bytes of a request."""
