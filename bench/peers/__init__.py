"""Session stores of agent frameworks and ours, under the same two calls, on one Postgres."""
