"""Retention: rules for how long data is kept, and erasures of sessions that match a filter."""
