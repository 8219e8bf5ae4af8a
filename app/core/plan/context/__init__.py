"""What a plan works on: the context, the state of its epoch, and the moves that change both at once."""
