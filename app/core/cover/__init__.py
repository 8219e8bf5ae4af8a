"""Summaries as values: which of them cover a log, which of them are shown, and which are merged next."""
