"""A proxy to providers' APIs that replaces conversations by contexts."""
