"""Outcomes of calls, and the calibrations learned from them."""
