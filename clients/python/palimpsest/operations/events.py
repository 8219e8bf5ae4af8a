"""The log: appending and reading events, visibility, recall, layers and turns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from palimpsest._request import Listing, Request, path
from palimpsest.operations.names import Content, Format, Message
from palimpsest.types import (
    AppendedOut,
    EventIn,
    EventOut,
    EventType,
    HideIn,
    LayerOut,
    LayersOut,
    RecallOut,
    TargetIn,
    TurnEndedOut,
    VisibilityOut,
)


def append_events(
    session: str, *, events: Iterable[EventIn], expected_head: int | None = None, idempotency_key: str | None = None
) -> Request[AppendedOut]:
    """Append 1 to 1,000 events, all or none. A session that does not exist is created.

    With `expected_head`, raises HeadConflictError and appends nothing unless that is the log's last seq.
    """
    body = {"events": list(events), "expected_head": expected_head}
    return Request("POST", path("sessions", session, "events"), AppendedOut, None, body, idempotency_key)


def append_messages(
    session: str,
    *,
    format: Format,
    messages: Iterable[Message],
    events: Sequence[EventIn] | None = None,
    expected_head: int | None = None,
    idempotency_key: str | None = None,
) -> Request[AppendedOut]:
    """Append 1 to 1,000 messages in a provider's own format, all or none: mappings, or the SDK's own objects.

    `events`, such as the results of the tools that a reply called, follow the messages.
    """
    body = {"format": format, "messages": list(messages), "events": events, "expected_head": expected_head}
    return Request("POST", path("sessions", session, "messages"), AppendedOut, None, body, idempotency_key)


def list_events(
    session: str,
    *,
    after: int | None = None,
    type: EventType | None = None,
    author: str | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Listing[EventOut]:
    """List the events of the session in order, as they were appended: after a seq, of one type, or by one author."""
    query = {"after": after, "type": type, "author": author, "limit": limit, "cursor": cursor}
    return Listing("GET", path("sessions", session, "events"), EventOut, query)


def get_event(session: str, seq: int) -> Request[EventOut]:
    """Get an event as it was appended."""
    return Request("GET", path("sessions", session, "events", seq), EventOut)


def redact_event(session: str, seq: int) -> Request[None]:
    """Permanently erase the content of an event. Its place in the log stays; summaries that cover it are rewritten."""
    return Request("DELETE", path("sessions", session, "events", seq), None)


def patch_visibility(
    session: str,
    *,
    hide: Sequence[int | HideIn] | None = None,
    show: Sequence[int | TargetIn] | None = None,
    pin: Sequence[int | TargetIn] | None = None,
    unpin: Sequence[int | TargetIn] | None = None,
    view: str | None = None,
    force: bool | None = None,
) -> Request[VisibilityOut]:
    """Hide, show, pin and unpin events for all future contexts. Each item is accepted or refused separately."""
    body = {"hide": hide, "show": show, "pin": pin, "unpin": unpin, "view": view, "force": force}
    return Request("PATCH", path("sessions", session, "visibility"), VisibilityOut, body=body)


def recall(
    session: str,
    *,
    query: str | None = None,
    seqs: Sequence[int] | None = None,
    paths: Sequence[str] | None = None,
    limit: int | None = None,
    max_tokens: int | None = None,
    call_id: str | None = None,
    offset: int | None = None,
) -> Request[RecallOut]:
    """Recall the originals of events from the whole log by seq, path or search, but not those that a call shows."""
    body = {"query": query, "seqs": seqs, "paths": paths, "limit": limit, "max_tokens": max_tokens}
    body |= {"call_id": call_id, "offset": offset}
    return Request("POST", path("sessions", session, "recall"), RecallOut, body=body)


def get_layers(session: str) -> Request[LayersOut]:
    """Get the layers that the next context shows."""
    return Request("GET", path("sessions", session, "layers"), LayersOut)


def put_layer(session: str, kind: str, *, content: Content) -> Request[LayerOut]:
    """Set the content of a layer (`sources` or `announce`), replacing the previous content."""
    return Request("PUT", path("sessions", session, "layers", kind), LayerOut, body={"content": content})


def delete_layer(session: str, kind: str) -> Request[None]:
    """Remove a layer. Nothing happens if there is none."""
    return Request("DELETE", path("sessions", session, "layers", kind), None)


def end_turn(session: str, *, turn_id: str | None = None, idempotency_key: str | None = None) -> Request[TurnEndedOut]:
    """End the running turn: append its announcement to the log, clear its layers, and allow compaction to begin."""
    body = {"turn_id": turn_id}
    return Request("POST", path("sessions", session, "turns", "end"), TurnEndedOut, None, body, idempotency_key)
