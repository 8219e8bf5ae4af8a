"""Latency and throughput of agents that replay recorded sessions, against a minimal server."""
