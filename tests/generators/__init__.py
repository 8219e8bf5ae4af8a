"""Clients that others generate from the API's document have a type for each error."""
