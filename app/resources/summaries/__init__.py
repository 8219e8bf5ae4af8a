"""Summaries, and the compactions that write them."""
