"""How fast the server is for agents that live through recorded sessions, against the least that could serve them."""
