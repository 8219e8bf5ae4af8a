"""Summaries as values: the ones that cover a log, are shown, and are merged next."""
