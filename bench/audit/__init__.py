"""Latency of the audit query over many records of calls."""
