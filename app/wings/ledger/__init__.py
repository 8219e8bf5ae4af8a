"""Ledgers: the use of the provider's cache, and its price."""
