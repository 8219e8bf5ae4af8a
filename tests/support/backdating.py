"""SQL that makes stored rows older than they are."""


def moved_back(column: str, by: str) -> str:
    """Return SQL that moves a time back; Citus forbids arithmetic that depends on the session's time zone."""
    return f"{column} = ({column} AT TIME ZONE 'UTC' - {by}) AT TIME ZONE 'UTC'"
