"""Turns: list them, and end the running one."""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Body, Depends, Header, Response

from app.api import paging
from app.api.openapi import KEY_CHARS_MAX, KEY_DESCRIPTION
from app.api.operation import Resource, Who, service
from app.api.schemas.common import Cursor, Limit, Sid
from app.api.schemas.turns import TurnEndedOut, TurnEndIn, TurnPage
from app.services.limits import EventRates
from app.services.turns import TurnEnded, Turns

router = Resource("turns")


Service = Annotated[Turns, Depends(service(Turns))]


@router.operation("GET", "/v1/sessions/{sid}/turns", scope="read", returns=TurnPage, problems=("not-found",))
async def list_turns(
    sid: Sid,
    who: Who,
    turns: Service,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Mapping[str, Any]:
    """List the turns of a session in order, each with its range of seqs and its state."""
    after = paging.decode_number(cursor, below=2**31 - 1001)
    rows = await turns.page(who.tenant_id, sid, after or 0, limit + 1)
    return paging.page(rows, limit, lambda row: row.turn)


@router.operation(
    "POST",
    "/v1/sessions/{sid}/turns/end",
    scope="ingest",
    returns=TurnEndedOut,
    status=201,
    also=(200,),
    problems=("not-found", "conflict", "idempotency-conflict", "too-many-events"),
)
async def end_turn(
    sid: Sid,
    body: Annotated[TurnEndIn, Body(default_factory=TurnEndIn)],
    response: Response,
    who: Who,
    turns: Service,
    rates: Annotated[EventRates, Depends(service(EventRates))],
    key: Annotated[
        str | None,
        Header(alias="Idempotency-Key", min_length=1, max_length=KEY_CHARS_MAX, description=KEY_DESCRIPTION),
    ] = None,
) -> TurnEnded:
    """End the running turn: its announcement is appended to the log, its layers are cleared, and compaction may begin.

    200 if the turn had already ended, or if the same request was sent before.
    """
    rates.take(who.tenant_id, 1)
    done = await turns.end(who.tenant_id, sid, body.turn_id, key, body.model_dump_json().encode())
    response.status_code = 201 if done.created else 200
    return done
