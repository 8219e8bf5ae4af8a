"""Token counts: estimators, their calibration by reported usage, models and their caches, and a context's budget."""
