"""The context, its frontier, and the operations that change both together."""
