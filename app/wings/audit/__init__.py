"""Explanation and comparison of recorded calls, and previews of the next."""
