"""The kinds of errors that an adapter tells apart: an outage, wrong settings, content that is refused."""

from __future__ import annotations

from collections.abc import Collection

from palimpsest.errors import (
    AuthenticationError,
    ConflictError,
    ConnectionFailed,
    ContextInfeasibleError,
    InvalidPolicyError,
    InvalidRequestError,
    NotFoundError,
    PalimpsestError,
    PermissionDeniedError,
    RateLimitError,
    RequestTimeoutError,
    ServerError,
    StatusError,
    TooManyLinesError,
    TooManySessionsError,
    UnreadableAnswer,
)

OUTAGES = (ConnectionFailed, ServerError, RateLimitError, RequestTimeoutError, ConflictError, UnreadableAnswer)
_LIMITS = (TooManySessionsError, TooManyLinesError)
_MISCONFIGURED = (AuthenticationError, PermissionDeniedError, NotFoundError, InvalidPolicyError)


def is_outage(error: PalimpsestError) -> bool:
    """Whether the server did not look at the request, as far as its answer says."""
    if isinstance(error, StatusError) and error.slug is None:  # a proxy's answer
        return True
    return isinstance(error, OUTAGES) and not isinstance(error, _LIMITS)


def is_about(error: PalimpsestError, settings: Collection[str]) -> bool:
    """Whether the server, and not a proxy, says that one of these settings is wrong, or the key or the address."""
    if not isinstance(error, StatusError) or error.slug is None:
        return False
    fields = str(error.problem.get("field")).split(".")
    wrong = isinstance(error, InvalidRequestError) and any(one in settings for one in fields)
    return wrong or isinstance(error, _MISCONFIGURED)


def reason(error: PalimpsestError) -> str:
    """The error in words; with what takes the room if no context fits."""
    if isinstance(error, ContextInfeasibleError):
        taken = ", ".join(f"{part} {tokens}" for part, tokens in error.by_source.items())
        return f"{error.detail} (tokens: {taken})"
    return str(error)
