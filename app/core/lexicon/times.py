"""Conversion of times between text, datetimes and epoch seconds, for every time that an event may have."""

from datetime import UTC, datetime
from typing import Final

EARLIEST: Final = datetime.min.replace(tzinfo=UTC) + datetime.resolution
LATEST: Final = datetime.max.replace(tzinfo=UTC) - datetime.resolution
"""The range of converted times. The driver of the database would store the microseconds outside it as infinities."""
_FIRST_SECOND: Final = datetime.min.replace(tzinfo=UTC).timestamp()
_END_SECOND: Final = datetime.max.replace(tzinfo=UTC, microsecond=0).timestamp() + 1


def in_utc(moment: datetime) -> datetime:
    """Convert a time to UTC, at most a microsecond off at the ends of the calendar; without an offset it is UTC.

    Raises ValueError for a time outside the years 1 to 9999 in UTC.
    """
    try:
        utc = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("must be a time of the years 1 to 9999 in UTC") from None
    return min(max(utc, EARLIEST), LATEST)


def parse_time(text: str) -> datetime:
    """Parse a time in ISO 8601 as `in_utc` converts it. Raises ValueError."""
    return in_utc(datetime.fromisoformat(text))


def to_seconds(moment: datetime) -> float:
    """Convert a time to epoch seconds. Raises ValueError."""
    return in_utc(moment).timestamp()


def is_time(seconds: float) -> bool:
    """Return whether epoch seconds are within the years 1 to 9999."""
    return _FIRST_SECOND <= seconds <= _END_SECOND


def from_seconds(seconds: float) -> datetime:
    """Convert epoch seconds to a time in UTC. Raises ValueError for seconds outside the years 1 to 9999."""
    if not is_time(seconds):
        raise ValueError("must be a time of the years 1 to 9999")
    if seconds == _END_SECOND:  # floats round the last microseconds up to this
        return LATEST
    return in_utc(datetime.fromtimestamp(seconds, UTC))


def time_text(moment: datetime) -> str:
    """Write a time as in responses: ISO 8601 in UTC, with `Z`."""
    return in_utc(moment).isoformat().removesuffix("+00:00") + "Z"
