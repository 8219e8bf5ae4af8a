"""Summaries made without a model."""
