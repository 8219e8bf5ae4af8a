"""The HTTP layer that all resources share: operations, authentication, limits, errors, documentation."""
