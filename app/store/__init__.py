"""Postgres: the log, the state of its views, and the record of every call."""
