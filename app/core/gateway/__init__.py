"""Model calls that pass through the gateway: whose they are, what of them is replaced, and what was answered."""
