"""What events, calls and summaries take on disk and in the database's log."""
