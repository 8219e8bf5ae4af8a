"""How fast an append and a context are, against the least that the same work can cost."""
