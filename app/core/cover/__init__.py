"""Summaries as values: which stand side by side, how finely they are shown, and which are merged."""
