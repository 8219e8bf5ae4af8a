"""Benchmarks; each prints its figures and those it is compared with, from the same run."""
