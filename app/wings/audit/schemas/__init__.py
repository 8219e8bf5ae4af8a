"""The responses about recorded calls."""
