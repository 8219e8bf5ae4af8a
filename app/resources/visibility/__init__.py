"""Visibility of events."""
