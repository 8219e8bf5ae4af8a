"""Replay of recorded sessions on a running server, and the provider's bill for them."""
