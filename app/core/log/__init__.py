"""The log: the events that an agent may append, their effect on a session, and the events as stored."""
