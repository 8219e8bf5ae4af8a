"""The retry policy: whether and after how long a request is sent again, without any I/O."""

from __future__ import annotations

import random
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime

from palimpsest.errors import ConnectionFailed, NotReproducibleError, PalimpsestError, StatusError

FIRST_SECONDS = 0.5
LONGEST_SECONDS = 8.0
RETRY_AFTER_MAX_SECONDS = 60.0
"""The longest `Retry-After` that is honored; for a longer one the error is raised immediately."""
RETRIED_STATUSES = frozenset({408, 429, 500, 502, 503, 504})


def wait(error: PalimpsestError, attempt: int, retries: int) -> float | None:
    """Return the seconds until the next attempt; None if there is none. The first attempt has the number 0.

    A 409 is never retried, because the result would be the same. Repeating a POST after a lost response is safe,
    because all attempts have the same idempotency key.
    """
    if attempt >= retries:
        return None
    if isinstance(error, StatusError):
        if error.status not in RETRIED_STATUSES or isinstance(error, NotReproducibleError):
            return None
        retry_after = _retry_after(error.response.headers.get("retry-after"))
        if retry_after is not None:
            return retry_after if retry_after <= RETRY_AFTER_MAX_SECONDS else None
    elif not isinstance(error, ConnectionFailed):
        return None
    longest: float = min(FIRST_SECONDS * 2.0**attempt, LONGEST_SECONDS)
    return longest * (1 - random.random() / 4)  # noqa: S311 - only spreads clients out


def _retry_after(header: str | None) -> float | None:
    """Return the seconds of a `Retry-After` header, given as a number or a date."""
    if header is None:
        return None
    try:
        return max(0.0, float(header))
    except ValueError:
        pass
    try:
        return max(0.0, (parsedate_to_datetime(header) - datetime.now(timezone.utc)).total_seconds())
    except (TypeError, ValueError):
        return None
