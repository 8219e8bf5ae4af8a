"""Model calls that pass through the gateway: their sessions, the parts of them that are replaced, and their replies."""
