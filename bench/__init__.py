"""Benchmarks. Each prints its figures beside those of a baseline, measured in the same run."""
