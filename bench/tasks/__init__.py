"""Agents at work on tasks with a verdict: the same agent with different managers of its context."""
