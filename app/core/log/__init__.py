"""The log: what an agent may append, what an append does to a session, and how stored events are read."""
