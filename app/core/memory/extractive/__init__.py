"""Extractive summaries: prose made of the log's own sentences."""
