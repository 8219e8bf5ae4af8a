"""Names and words in texts: those that an agent is likely to use again, and the terms of a search."""
