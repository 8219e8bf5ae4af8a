"""Tests that take minutes."""
