"""What a policy costs: recorded sessions through the planner, billed as a provider would."""
