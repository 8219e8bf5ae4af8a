"""A replica of the database, from which the past is read."""
