"""Where a log may be cut, and where it is."""
