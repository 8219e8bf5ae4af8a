"""Recall of evidence in recorded dialogues, and the cost of one recall in a context."""
