"""The log: append events or a provider's messages, read and redact events."""

from collections.abc import Mapping
from operator import itemgetter
from typing import Annotated, Any, get_args

from fastapi import Depends, Path, Query, Request, Response
from pydantic import BaseModel

from app.core.errors import InvalidRequest, NotFound
from app.core.log.events import EVENTS_PER_BATCH_MAX, NAME_CHARS_MAX, EventType, Json, canonical_json
from app.core.log.segments import session_of
from app.core.render.formats.tools import NativeFormat
from app.http import paging
from app.http.fields import Cursor, Limit, Sid
from app.http.openapi import body_of_model
from app.http.operation import Resource, Who, idempotency_key, service
from app.http.requests import read_json
from app.resources.events.appends import Appended, AppendRequest, events_request, messages_request
from app.resources.events.reading import Reading, Redaction
from app.resources.events.schemas import AppendedOut, EventOut, EventPage, EventsIn, MessagesIn
from app.tenants import Caller

router = Resource("events", schemas=(EventsIn, MessagesIn))

Seq = Annotated[int, Path(description="Seq of the event.")]
_APPEND_PROBLEMS = (
    *("invalid-event", "unknown-call", "duplicate-call", "head-conflict", "idempotency-conflict", "conflict"),
    *("too-many-sessions", "session-erased", "too-many-events"),
)


@router.operation(
    "POST",
    "/v1/sessions/{sid}/events",
    scope="ingest",
    resolves_line=False,
    returns=AppendedOut,
    status=201,
    also=(200,),
    problems=_APPEND_PROBLEMS,
    openapi_extra=body_of_model(EventsIn),
)
async def append_events(request: Request, who: Who) -> Response:
    """Append 1 to 1,000 events to the log, all or none. A session that does not exist is created.

    If the same request, or events with the same ids, were sent before, the first response is returned with 200.
    """
    return await _append(request, who, EventsIn)


@router.operation(
    "POST",
    "/v1/sessions/{sid}/messages",
    scope="ingest",
    resolves_line=False,
    returns=AppendedOut,
    status=201,
    also=(200,),
    problems=(*_APPEND_PROBLEMS, "invalid-message"),
    openapi_extra=body_of_model(MessagesIn),
)
async def append_messages(request: Request, who: Who) -> Response:
    """Append 1 to 1,000 messages in a provider's own format, all or none. A session that does not exist is created.

    Contexts in the same format show the messages unchanged. If the same request was sent before, the first response is
    returned with 200.
    """
    return await _append(request, who, MessagesIn)


@router.operation("GET", "/v1/sessions/{sid}/events", scope="read", returns=EventPage)
async def list_events(
    sid: Sid,
    who: Who,
    reading: Annotated[Reading, Depends(service(Reading))],
    after: Annotated[
        int, Query(ge=0, lt=2**63, description="Seq after which to begin; ignored if a `cursor` is given.")
    ] = 0,
    kind: Annotated[EventType | None, Query(alias="type", description="Type: return only events of it.")] = None,
    author: Annotated[
        str | None, Query(min_length=1, max_length=NAME_CHARS_MAX, description="Author: return only events by it.")
    ] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """List the events of a session in order, as they were appended. The log is always complete.

    With `type` or `author` a page may have fewer than `limit` events although more follow: check `next_cursor`.
    """
    start = paging.decode_number(cursor, below=2**63)
    start = after if start is None else start
    if kind is None and author is None:
        items = await reading.events(who.tenant_id, sid, start, limit + 1)
        return _json(paging.page(items, limit, itemgetter("seq")))
    items, end = await reading.events_of_kind(who.tenant_id, sid, start, limit, kind=kind, author=author)
    return _json(paging.page_to(items, end))


@router.operation("GET", "/v1/sessions/{sid}/events/{seq}", scope="read", returns=EventOut)
async def get_event(sid: Sid, seq: Seq, who: Who, reading: Annotated[Reading, Depends(service(Reading))]) -> Response:
    """Get an event as it was appended."""
    items = await reading.events(who.tenant_id, sid, seq - 1, 1) if 1 <= seq < 2**63 else []
    if not items or items[0]["seq"] != seq:
        raise NotFound(f"session {sid!r} has no event {seq}", session=sid, seq=seq)
    return _json(items[0])


@router.operation("DELETE", "/v1/sessions/{sid}/events/{seq}", scope="admin", status=204)
async def redact_event(
    sid: Sid, seq: Seq, who: Who, redaction: Annotated[Redaction, Depends(service(Redaction))]
) -> None:
    """Redact an event: its content is permanently erased, its place in the log stays.

    Summaries that cover it lose their text; live ones are rewritten without it.
    """
    await redaction.redact(who.tenant_id, sid, seq if 1 <= seq < 2**63 else 0, who.key_id, who.session_prefix)


async def _append(request: Request, who: Caller, model: type[BaseModel]) -> Response:
    sid, key = request.path_params["sid"], idempotency_key(request)
    body, raw = await read_json(request, strict=False)  # events are checked one by one
    append = append_request(body, model, key, raw)
    services = request.state.services
    services.event_rates.take(who.tenant_id, len(append.drafts))
    appended: Appended = await services.ingest.append(who.tenant_id, sid, append)
    status = 201 if appended.created else 200
    return Response(canonical_json(appended_json(append, appended)), status, media_type="application/json")


def append_request(body: Json, model: type[BaseModel], key: str | None, request_bytes: bytes) -> AppendRequest:
    """Return the append that a body of EventsIn or MessagesIn asks for. `request_bytes` identify equal requests.

    Raises InvalidRequest, InvalidEvent or InvalidMessage.
    """
    if not isinstance(body, Mapping):
        raise InvalidRequest("the body must be a JSON object", field="")
    for name in body:
        if name not in model.model_fields:
            raise InvalidRequest(f"unknown field {name!r}", field=name)
    head = body.get("expected_head")
    if head is not None and (isinstance(head, bool) or not isinstance(head, int) or not 0 <= head < 2**63):
        raise InvalidRequest("expected_head must be a whole number of 0 or more", field="expected_head")
    if model is EventsIn:
        return events_request(body.get("events"), head, key, request_bytes)
    if body.get("format") not in get_args(NativeFormat):
        raise InvalidRequest(f"format must be one of {', '.join(get_args(NativeFormat))}", field="format")
    messages = body.get("messages")
    if not isinstance(messages, list) or not 1 <= len(messages) <= EVENTS_PER_BATCH_MAX:
        raise InvalidRequest(f"messages must be a list of 1 to {EVENTS_PER_BATCH_MAX}", field="messages")
    following = body.get("events") or []
    if not isinstance(following, list):
        raise InvalidRequest("events must be a list", field="events")
    return messages_request(body["format"], messages, head, key, request_bytes, following)


def appended_json(request: AppendRequest, appended: Appended) -> dict[str, Any]:
    """Return the response to an append."""
    events = zip(request.indices, appended.events, strict=True)
    return {
        "session": session_of(appended.session),
        "line": appended.line,
        "head": appended.head,
        "epoch": appended.epoch,
        "events": [{"index": index, **one._asdict()} for index, one in events],
        "pressure": appended.pressure._asdict(),
    }


def _json(value: Any) -> Response:
    return Response(canonical_json(value), media_type="application/json")
