"""Summaries written without a model."""
