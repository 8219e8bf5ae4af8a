"""Recorded calls: listed, explained, compared and rendered again."""
