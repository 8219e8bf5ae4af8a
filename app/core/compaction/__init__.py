"""Compaction: the next span to summarize, the request for a model's summary, and the checks of it."""
