"""Latency of planning."""
