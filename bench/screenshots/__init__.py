"""Pictures of the pages, for README and docs."""
