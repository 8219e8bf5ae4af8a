"""Token counts: estimators, their calibration by reported usage, what is known of models, and the budget."""
