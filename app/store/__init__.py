"""Postgres: the log, its projections' state, and the record of every call."""
