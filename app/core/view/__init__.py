"""A loaded view, a caller's request to it, and the budget and plan inputs that follow from both."""
