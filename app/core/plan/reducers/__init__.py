"""The reducers, one per module, and their shared helpers."""
