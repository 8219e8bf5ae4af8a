"""Decides what is shown: reducers, cheap before dear, each `reduce(context, budget, state) -> (context, state)`."""
