"""The commands that show a session: `sessions`, `context`, `calls`, `events` and `explain`."""
