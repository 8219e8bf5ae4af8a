"""The digest of a span: facts that are extracted mechanically and never left to a model."""
