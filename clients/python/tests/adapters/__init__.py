"""Each adapter with its framework's real runner, a scripted model, and the real server."""
