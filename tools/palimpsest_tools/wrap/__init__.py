"""Agents that are started with a server as their provider's address."""
