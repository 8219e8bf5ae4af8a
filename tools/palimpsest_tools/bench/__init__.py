"""The command `bench`: recorded sessions of a user, billed under Palimpsest and under other rules."""
