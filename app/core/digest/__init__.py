"""The digest of a span: what is found in it mechanically and never left to a model."""
