"""A view as it was loaded, a caller's request to it, and the budget and the plan's inputs that follow from both."""
