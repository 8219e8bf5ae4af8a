"""How long data is kept, and the erasure of all sessions that a filter finds."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from palimpsest._request import Listing, Request, path
from palimpsest.types import ErasedSessionOut, ErasureOut, ErasurePreview, RetentionOut, RetentionPreview

Forks = Literal["keep", "erase"]


def put_retention(
    *,
    session_days: int | None = None,
    idle_days: int | None = None,
    call_days: int | None = None,
    compaction_days: int | None = None,
    change_days: int | None = None,
    delivery_days: int | None = None,
) -> Request[RetentionOut]:
    """Set for how many days the tenant's data is kept; what is omitted is kept for ever."""
    body = {
        "session_days": session_days,
        "idle_days": idle_days,
        "call_days": call_days,
        "compaction_days": compaction_days,
        "change_days": change_days,
        "delivery_days": delivery_days,
    }
    return Request("PUT", path("retention"), RetentionOut, body=body)


def get_retention() -> Request[RetentionOut]:
    """Get for how many days the tenant's data is kept."""
    return Request("GET", path("retention"), RetentionOut)


def preview_retention(*, limit: int | None = None, cursor: str | None = None) -> Request[RetentionPreview]:
    """Get what the rules would erase now, without erasing it."""
    return Request("GET", path("retention:preview"), RetentionPreview, {"limit": limit, "cursor": cursor})


def create_erasure(
    *,
    metadata: Mapping[str, Any],
    model: str | None = None,
    since: str | datetime | None = None,
    until: str | datetime | None = None,
    forks: Forks | None = None,
    expected: int | None = None,
    idempotency_key: str | None = None,
) -> Request[ErasureOut]:
    """Erase all sessions for which the conditions hold; a worker does it. This cannot be undone.

    More than 100 are erased only if `expected` is the preview's number of `sessions`.
    """
    body = {
        "metadata": metadata,
        "model": model,
        "since": since,
        "until": until,
        "forks": forks,
        "expected": expected,
    }
    return Request("POST", path("erasures"), ErasureOut, body=body, idempotency_key=idempotency_key)


def preview_erasure(
    *,
    metadata: Mapping[str, Any],
    model: str | None = None,
    since: str | datetime | None = None,
    until: str | datetime | None = None,
    forks: Forks | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Request[ErasurePreview]:
    """Get what an erasure with these conditions would erase now, without erasing it."""
    body = {"metadata": metadata, "model": model, "since": since, "until": until, "forks": forks}
    return Request("POST", path("erasures:preview"), ErasurePreview, {"limit": limit, "cursor": cursor}, body)


def get_erasure(erasure_id: str) -> Request[ErasureOut]:
    """Get an erasure: how far it is, or its receipt."""
    return Request("GET", path("erasures", erasure_id), ErasureOut)


def list_erasures(*, limit: int | None = None, cursor: str | None = None) -> Listing[ErasureOut]:
    """List the tenant's erasures, newest first."""
    return Listing("GET", path("erasures"), ErasureOut, {"limit": limit, "cursor": cursor})


def list_erased_sessions(
    erasure_id: str, *, limit: int | None = None, cursor: str | None = None
) -> Listing[ErasedSessionOut]:
    """List the sessions that an erasure has erased so far, by ids that are made of their names."""
    return Listing(
        "GET", path("erasures", erasure_id, "sessions"), ErasedSessionOut, {"limit": limit, "cursor": cursor}
    )
