"""Sessions: their settings, epochs, turns, lines, forks and streams."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Literal

from palimpsest._request import Listing, Request, path
from palimpsest.types import EpochOut, ForkOut, LineOut, PolicyDocument, RewindOut, SessionOut, TurnOut


def put_session(
    session: str,
    *,
    policy: str | PolicyDocument | None = None,
    model: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    outside_tokens: int | None = None,
) -> Request[SessionOut]:
    """Create the session, or change its settings if it exists. Omitted settings keep their value."""
    body = {"policy": policy, "model": model, "metadata": metadata, "outside_tokens": outside_tokens}
    return Request("PUT", path("sessions", session), SessionOut, body=body)


def get_session(session: str) -> Request[SessionOut]:
    """Get the session: its settings, the end of its log and its size."""
    return Request("GET", path("sessions", session), SessionOut)


def delete_session(session: str, *, forks: Literal["keep", "erase"] | None = None) -> Request[None]:
    """Erase the session with everything derived from it. This cannot be undone."""
    return Request("DELETE", path("sessions", session), None, {"forks": forks})


def list_sessions(
    *,
    parent: str | None = None,
    model: str | None = None,
    since: str | datetime | None = None,
    until: str | datetime | None = None,
    metadata: Mapping[str, Any] | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Listing[SessionOut]:
    """List the sessions that the key can access, newest first; all conditions must hold.

    Conditions are the `parent` of a fork, a `model`, the time of creation, and members of the metadata.
    """
    query = _page(limit, cursor, parent=parent, model=model, since=since, until=until)
    query["metadata"] = None if metadata is None else json.dumps(dict(metadata))
    return Listing("GET", path("sessions"), SessionOut, query)


def list_epochs(
    session: str, *, view: str | None = None, limit: int | None = None, cursor: str | None = None
) -> Listing[EpochOut]:
    """List the epochs of a view in order, each with its cause: the times at which its contexts were rewritten."""
    return Listing("GET", path("sessions", session, "epochs"), EpochOut, _page(limit, cursor, view=view))


def list_turns(session: str, *, limit: int | None = None, cursor: str | None = None) -> Listing[TurnOut]:
    """List the turns of the session in order, each with its range of seqs and its state."""
    return Listing("GET", path("sessions", session, "turns"), TurnOut, _page(limit, cursor))


def fork_session(
    session: str,
    *,
    id: str,
    at: int | None = None,
    metadata: Mapping[str, Any] | None = None,
    idempotency_key: str | None = None,
) -> Request[ForkOut]:
    """Create a session that shares the log of this one up to `at` (default: its head). Nothing is copied."""
    body = {"id": id, "at": at, "metadata": metadata}
    return Request("POST", path("sessions", session, "fork"), ForkOut, None, body, idempotency_key)


def rewind_session(session: str, *, to: int, idempotency_key: str | None = None) -> Request[RewindOut]:
    """Rewind the session: from now on its id means a new line that ends at `to`. Nothing is destroyed."""
    return Request("POST", path("sessions", session, "rewind"), RewindOut, None, {"to": to}, idempotency_key)


def list_lines(session: str, *, limit: int | None = None, cursor: str | None = None) -> Listing[LineOut]:
    """List the lines (branches) of the session, oldest first. The session's id means the current one."""
    return Listing("GET", path("sessions", session, "lines"), LineOut, _page(limit, cursor))


def stream_session(
    session: str, *, after: int | None = None, types: Iterable[str] | None = None
) -> Request[dict[str, Any]]:
    """Stream the events and changes of the session after the seq `after`."""
    query = {"after": after, "types": None if types is None else ",".join(types)}
    return Request("GET", path("sessions", session, "stream"), dict, query)


def _page(limit: int | None, cursor: str | None, **more: str | int | bool | datetime | None) -> dict[str, Any]:
    return {**more, "limit": limit, "cursor": cursor}
