"""Assembly: the context of a call, from the loaded view to the request and its record."""
