"""Settings, wiring, and the processes of the server."""
