"""The plan of a context: reducers, run in order with the cheapest first, decide which events are sent verbatim."""
