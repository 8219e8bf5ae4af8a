"""Memory: the facts and the extractive prose of a span of events, and the tree of summaries."""
