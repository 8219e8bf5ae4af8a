"""Bytes of events, calls and summaries on disk and in the database's log."""
