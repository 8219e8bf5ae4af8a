"""What a model sees of what it will need, measured over HTTP on recorded sessions."""
