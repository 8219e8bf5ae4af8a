"""The plan of a context: the reducers in order, cheap before dear."""
