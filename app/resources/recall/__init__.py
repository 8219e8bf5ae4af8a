"""Recall of originals."""
