"""From a planned context to the provider's request."""
