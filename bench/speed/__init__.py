"""Latency of an append and of a context, against the minimal cost of the same work."""
