"""A soak test: half an hour of mixed load at a share of the capacity, and the quantities that grow."""
