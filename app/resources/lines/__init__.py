"""Lines of sessions, rewinds and forks."""
