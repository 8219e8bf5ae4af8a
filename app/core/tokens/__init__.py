"""Token counts: estimators and their calibration by reported usage, model profiles, and the budget of a context."""
