"""What is stored, made older than it is."""


def earlier(column: str, by: str) -> str:
    """SQL that sets a time back by an interval; Citus lets no change be computed by a time zone of the session."""
    return f"{column} = ({column} AT TIME ZONE 'UTC' - {by}) AT TIME ZONE 'UTC'"
