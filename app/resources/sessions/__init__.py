"""Sessions, and the limits of their tenants."""
