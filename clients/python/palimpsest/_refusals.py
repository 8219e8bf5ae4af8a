"""The kinds of errors that an adapter distinguishes: outages, wrong settings, and refused content."""

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
    """Return whether the server apparently did not process the request."""
    if isinstance(error, StatusError) and error.slug is None:  # a proxy's response
        return True
    return isinstance(error, OUTAGES) and not isinstance(error, _LIMITS)


def is_about(error: PalimpsestError, settings: Collection[str]) -> bool:
    """Return whether the server, not a proxy, reports that one of these settings, the key or the address is wrong."""
    if not isinstance(error, StatusError) or error.slug is None:
        return False
    fields = str(error.problem.get("field")).split(".")
    wrong = isinstance(error, InvalidRequestError) and any(one in settings for one in fields)
    return wrong or isinstance(error, _MISCONFIGURED)


def reason(error: PalimpsestError) -> str:
    """Return the error's message; if no context fits, with the size of each part."""
    if isinstance(error, ContextInfeasibleError):
        taken = ", ".join(f"{part} {tokens}" for part, tokens in error.by_source.items())
        return f"{error.detail} (tokens: {taken})"
    return str(error)
