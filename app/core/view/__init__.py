"""A view: as it was loaded, what a caller asks of it, and the budget and the plan's inputs that follow."""
