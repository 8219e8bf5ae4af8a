"""Wings: parts of the server that can be deleted with their folder. Nothing outside imports them."""
