"""Whether what is asked for is found again in recorded dialogues, and what one recall adds to a context."""
