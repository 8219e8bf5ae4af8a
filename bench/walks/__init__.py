"""How much of the code one request walks through."""
