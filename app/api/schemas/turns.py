"""Turns."""

from typing import Literal

from pydantic import BaseModel, Field

from app.api.schemas.common import NextCursor, StrictRequest
from app.api.schemas.events import LoggedEvent, LogGrown


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
