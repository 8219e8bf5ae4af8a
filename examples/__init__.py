"""Agents that keep their context in Palimpsest."""
