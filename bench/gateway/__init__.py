"""What the gateway adds to the time until a provider's first byte."""
