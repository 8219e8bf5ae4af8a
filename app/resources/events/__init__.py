"""Events: append and read them."""
