"""Streams of sessions."""
