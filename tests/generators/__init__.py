"""Clients that others make of the API's document have a type for each error."""
