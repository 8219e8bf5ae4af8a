"""Compaction: which span is summarized next, what a model is asked, and what its answer must pass."""
