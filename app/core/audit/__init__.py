"""The record of a call: its manifest, its replay, its explanation and its cost."""
