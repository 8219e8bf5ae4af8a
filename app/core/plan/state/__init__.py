"""The state that reducers work on: a context, its frontier, and the decisions taken so far."""
