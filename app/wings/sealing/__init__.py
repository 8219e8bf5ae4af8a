"""Contents sealed with a key for each tenant."""
