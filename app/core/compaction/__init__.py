"""Compaction: the choice of the next span to summarize, the prompt for a model, and the checks of its answer."""
