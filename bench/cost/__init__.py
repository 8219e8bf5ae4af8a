"""Costs of policies: recorded sessions through the planner, billed as a provider would."""
