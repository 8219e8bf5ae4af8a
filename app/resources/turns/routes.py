"""Turns: list them, and end the running one."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi import Body, Depends, Response
from pydantic import BaseModel, Field

from app.http import paging
from app.http.fields import Cursor, Limit, NextCursor, Sid, StrictRequest
from app.http.operation import Key, Resource, Who, service
from app.resources.events.schemas import LoggedEvent, LogGrown
from app.resources.sessions.service import EventRates
from app.resources.turns.service import TurnEnded, Turns


class TurnOut(BaseModel):
    """A turn: a user's message and everything up to the next one."""

    turn: int = Field(description="Number of the turn, counted from 1.")
    turn_id: str | None = Field(description="Client's own name of the turn; null if it gave none.")
    from_seq: int = Field(description="Seq of the turn's first event.")
    to_seq: int = Field(description="Seq of the turn's last event; for the last turn, the head.")
    state: Literal["running", "ended", "interrupted"] = Field(
        description="State of the turn: `running` (the last turn, not ended yet), `ended` (by a `turn.end`, or by the "
        "next turn) or `interrupted` (begun by a `turn.start`, and the next turn began before its `turn.end`)."
    )
    tokens: int = Field(description="Size of all events of the turn as logged, in tokens by the session's estimator.")
    events: int = Field(description="Number of events in the turn.")


class TurnPage(BaseModel):
    """A page of a session's turns. Events before the first turn belong to no turn."""

    items: list[TurnOut] = Field(description="Turns in order.")
    next_cursor: NextCursor


class TurnEndIn(StrictRequest):
    """Request to end the running turn."""

    turn_id: str | None = Field(
        None,
        min_length=1,
        max_length=256,
        description="Client's own name of the turn to end; if the last turn has a different one, the error is "
        "`conflict`. Default: the last turn, whatever its name.",
    )


class AnnounceRef(BaseModel):
    """An announcement that was appended to the log."""

    seq: int = Field(description="Seq of the `announce` event.")
    tokens: int = Field(description="Size of the event as appended, in tokens by the session's estimator.")


class TurnEndedOut(LogGrown):
    """Result of ending a turn, with the events that were appended for it."""

    events: list[LoggedEvent] = Field(description="Events that ended the turn, in the order of the log.")
    turn: int = Field(description="Number of the turn.")
    turn_id: str | None = Field(description="Client's own name of the turn; null if it gave none.")
    ended: bool = Field(
        description="Whether this request ended the turn; false if it had already ended and nothing was appended."
    )
    announce: AnnounceRef | None = Field(
        description="Event made of the content of the layer `announce`; null if the layer was empty."
    )


router = Resource("turns")


Service = Annotated[Turns, Depends(service(Turns))]


@router.operation("GET", "/v1/sessions/{sid}/turns", scope="read", returns=TurnPage)
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
    problems=("conflict", "idempotency-conflict", "too-many-events"),
)
async def end_turn(
    sid: Sid,
    body: Annotated[TurnEndIn, Body(default_factory=TurnEndIn)],
    response: Response,
    who: Who,
    turns: Service,
    rates: Annotated[EventRates, Depends(service(EventRates))],
    key: Key = None,
) -> TurnEnded:
    """End the running turn: its announcement is appended to the log, its layers are cleared, and compaction may begin.

    200 if the turn had already ended, or if the same request was sent before.
    """
    rates.take(who.tenant_id, 1)
    done = await turns.end(who.tenant_id, sid, body.turn_id, key, body.model_dump_json().encode())
    response.status_code = 201 if done.created else 200
    return done
