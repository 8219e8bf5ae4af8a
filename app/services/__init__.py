"""One module per use case: load, call the core, store the outcome."""
