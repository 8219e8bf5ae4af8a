"""Record: the manifest and the evictions of a call."""
