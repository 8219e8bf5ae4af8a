"""Background work: jobs and schedules, in the same Postgres as the log."""
