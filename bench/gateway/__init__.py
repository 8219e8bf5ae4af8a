"""Latency that the gateway adds to a provider's first byte."""
