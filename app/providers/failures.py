"""Errors of providers, and their kinds, from one table of HTTP statuses and the overflow patterns that views use."""

import math
import re
from collections.abc import Collection, Mapping
from email.utils import parsedate_to_datetime
from typing import Final, Literal, TypeAlias

from app.core.policy.overflow import MESSAGE_CHARS_MAX, classify
from app.providers.redaction import redacted

Kind: TypeAlias = Literal[
    "rate_limited",
    "overloaded",
    "server",
    "timeout",
    "connection",
    "context_too_long",
    "auth",
    "invalid",
    "spent",
    "open",
]
"""`spent`: a quota or spending limit is used up. `open`: the provider failed too often just now and was not called."""

RETRYABLE: Final = frozenset({"rate_limited", "overloaded", "server", "timeout", "connection"})
DETAIL_CHARS_MAX: Final = 300


class ProviderError(Exception):
    """A model could not be called, or gave no answer.

    `retryable` is whether the same request may succeed later, `retry_after` after how many seconds (None: unknown).
    After `context_too_long`, a shorter request may succeed: one of `room` tokens (None: unknown).
    """

    def __init__(
        self,
        kind: Kind,
        detail: str,
        *,
        retry_after: float | None = None,
        retryable: bool | None = None,
        room: int | None = None,
    ) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind: Kind = kind
        self.detail = detail[:DETAIL_CHARS_MAX]
        self.retry_after = retry_after
        self.room = room
        self.retryable = kind in RETRYABLE if retryable is None else retryable

    def redacted(self, key: str) -> "ProviderError":
        """Return the error without any quote of the key."""
        detail = redacted(self.detail, (key,))
        return ProviderError(self.kind, detail, retry_after=self.retry_after, retryable=self.retryable, room=self.room)


_QUOTA: Final = re.compile(r"insufficient_quota|exceeded your current quota|credit balance|spend(?:ing)? limit", re.I)
_UNSUPPORTED: Final = re.compile(
    r"unsupported (?:parameter|value)|not supported|does not support|deprecated|unrecognized"
    r"|unknown (?:parameter|field)|extra (?:inputs|fields)|not permitted",
    re.IGNORECASE,
)
_STATUSES: Final[Mapping[int, Kind]] = {
    401: "auth",
    402: "spent",
    403: "auth",
    408: "timeout",
    409: "server",
    413: "context_too_long",
    425: "server",
    429: "rate_limited",
    503: "overloaded",
    504: "timeout",
    529: "overloaded",
}


def too_long(message: str) -> bool:
    """Return whether an error's message says that the request does not fit the model's window."""
    return classify(message) is not None


def failure(status: int, message: str, headers: Mapping[str, str]) -> ProviderError:
    """Return the error for a response. `message` is its body, or the text that the provider's client made of it."""
    message = message[:MESSAGE_CHARS_MAX]
    kind, overflow = _kind(status, message), classify(message)
    room = overflow.room if overflow is not None and kind == "context_too_long" else None
    return ProviderError(kind, _detail(status, message), retry_after=retry_after(headers), room=room)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that a response asks to wait, None if it does not; dates are relative to its own."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers[name]) * unit
            return max(0.0, seconds) if math.isfinite(seconds) else None
        except (KeyError, ValueError):
            continue
    try:
        until, now = (parsedate_to_datetime(headers[name]) for name in ("retry-after", "date"))
        return max(0.0, (until - now).total_seconds())
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def rejected_parameter(message: str, sent: Collection[str]) -> str | None:
    """Return the parameter in `sent` that the model does not accept, by its error message; None for another error."""
    if not _UNSUPPORTED.search(message):
        return None
    return next((name for name in sent if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", message)), None)


def _kind(status: int, message: str) -> Kind:
    wordless = message in ("", f"Error code: {status}")  # how some providers report an overflow
    if (status in (400, 413, 422, 500) and too_long(message)) or (status == 400 and wordless):
        return "context_too_long"
    if status in (400, 403, 429) and _QUOTA.search(message):
        return "spent"
    if known := _STATUSES.get(status):
        return known
    return "server" if status >= 500 else "invalid"


def _detail(status: int, message: str) -> str:
    """Return the message to show and store, without a refused key, which the provider quotes."""
    if status in (401, 403):
        return f"HTTP {status}: the provider refused the key"
    return f"HTTP {status}: {' '.join(message.split())}"[:DETAIL_CHARS_MAX]
