"""Reconciliation of a client's complete messages with the log."""
