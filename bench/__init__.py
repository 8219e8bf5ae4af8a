"""Benchmarks: each prints what it measured beside what it is compared with, from the same run."""
