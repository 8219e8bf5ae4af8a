"""Names and words in text: what an agent is likely to use again, and what a search looks for."""
