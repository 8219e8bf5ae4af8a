"""Palimpsest: a context-assembly server for LLM agents."""
