"""From a planned context to the bytes of a request."""
