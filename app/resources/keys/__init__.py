"""API keys and their tenants."""
