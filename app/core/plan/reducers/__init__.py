"""The reducers, each in a file of its own, and what they share."""
