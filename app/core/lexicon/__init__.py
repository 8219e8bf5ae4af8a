"""Names and words in texts: what an agent is likely to use again, and the terms of a search."""
