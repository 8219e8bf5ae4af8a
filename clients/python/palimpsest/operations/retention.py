"""Rules for how long data is kept, and erasures of the sessions that match a filter."""

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
    """Set how many days the tenant's data is kept. The rules replace all previous ones; an omitted rule is unset."""
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
    """Get how many days the tenant's data is kept."""
    return Request("GET", path("retention"), RetentionOut)


def preview_retention(*, limit: int | None = None, cursor: str | None = None) -> Request[RetentionPreview]:
    """Preview the data that the rules would erase now. Nothing is erased."""
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
    """Erase the sessions that meet the conditions, in a worker. This cannot be undone.

    To erase more than 100 sessions, `expected` must be the preview's `sessions`.
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
    """Preview the sessions that an erasure with these conditions would erase now. Nothing is erased."""
    body = {"metadata": metadata, "model": model, "since": since, "until": until, "forks": forks}
    return Request("POST", path("erasures:preview"), ErasurePreview, {"limit": limit, "cursor": cursor}, body)


def get_erasure(erasure_id: str) -> Request[ErasureOut]:
    """Get an erasure: its progress or, once it is done, its receipt."""
    return Request("GET", path("erasures", erasure_id), ErasureOut)


def list_erasures(*, limit: int | None = None, cursor: str | None = None) -> Listing[ErasureOut]:
    """List the tenant's erasures, newest first."""
    return Listing("GET", path("erasures"), ErasureOut, {"limit": limit, "cursor": cursor})


def list_erased_sessions(
    erasure_id: str, *, limit: int | None = None, cursor: str | None = None
) -> Listing[ErasedSessionOut]:
    """List the sessions that an erasure has erased so far, by UUIDs derived from their names."""
    return Listing(
        "GET", path("erasures", erasure_id, "sessions"), ErasedSessionOut, {"limit": limit, "cursor": cursor}
    )
