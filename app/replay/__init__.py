"""Replay: a recorded session through a real server, call by call, and what a provider would have billed for it."""
