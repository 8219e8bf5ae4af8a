"""The shapes of the API, for its validation and its OpenAPI document: one module a topic."""
