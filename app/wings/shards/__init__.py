"""Sessions in shards over the nodes of a distributed database (docs/scaling.md)."""
