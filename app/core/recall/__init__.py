"""An agent's access to its own history: search, recall, and decisions to hide, show or pin."""
