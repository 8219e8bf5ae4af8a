"""Information kept by summaries made without a model, measured on recorded sessions."""
