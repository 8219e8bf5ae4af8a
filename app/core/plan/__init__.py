"""The plan of a context: what is sent verbatim and what is not, by reducers in order, the cheapest first."""
