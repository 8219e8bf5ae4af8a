"""Clients of models that write summaries, and the reading and redaction of providers' answers."""
