"""The reducers, one file each, and what they share."""
