"""When a request is sent again, and after how long: decisions without any I/O."""

from __future__ import annotations

import random
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime

from palimpsest.errors import ConnectionFailed, NotReproducibleError, PalimpsestError, StatusError

FIRST_SECONDS = 0.5
LONGEST_SECONDS = 8.0
PATIENCE_SECONDS = 60.0
"""The longest wait that a server may ask for; beyond it the error is raised at once."""
AGAIN = frozenset({408, 429, 500, 502, 503, 504})


def wait(error: PalimpsestError, attempt: int, retries: int) -> float | None:
    """Seconds until the next attempt, the first being 0; None if there is to be none.

    A 409 is never tried again: it is an answer, and a server says the same again. Lost answers cost nothing, because a
    POST carries the same idempotency key each time.
    """
    if attempt >= retries:
        return None
    if isinstance(error, StatusError):
        if error.status not in AGAIN or isinstance(error, NotReproducibleError):
            return None
        asked = _asked(error.response.headers.get("retry-after"))
        if asked is not None:
            return asked if asked <= PATIENCE_SECONDS else None
    elif not isinstance(error, ConnectionFailed):
        return None
    longest: float = min(FIRST_SECONDS * 2.0**attempt, LONGEST_SECONDS)
    return longest * (1 - random.random() / 4)  # noqa: S311 - only spreads clients out


def _asked(header: str | None) -> float | None:
    """Seconds that a `Retry-After` header asks for, as a number or as a date."""
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
