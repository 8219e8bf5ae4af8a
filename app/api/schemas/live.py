"""Turns, and the layers that an agent sets while it works."""

from typing import Any, Literal

from pydantic import BaseModel, Field

from app.api.schemas.common import CreatedAt, NextCursor, StrictRequest
from app.api.schemas.events import LoggedEvent, LogGrown

LayerKind = Literal["sources", "announce"]


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


class LayerIn(StrictRequest):
    """Content of a layer, which replaces its previous content."""

    content: str | list[dict[str, Any]] = Field(description="Text, or a list of parts as in an event's `content`.")


class LayerOut(BaseModel):
    """A layer: content shown at the end of every context and not part of the log."""

    kind: LayerKind = Field(description="Kind of the layer.")
    version: int = Field(
        description="Version of the layer; each change of any layer of the session takes the next number."
    )
    content: str | list[dict[str, Any]] = Field(description="Text, or a list of parts as in an event's `content`.")
    tokens: int = Field(description="Size of the layer as shown, in tokens by the session's estimator.")
    turn: int | None = Field(
        description="Number of the turn with which the layer ends, if it was set during a turn begun by a "
        "`turn.start`; null if it stays until it is removed, or a turn is ended by request."
    )
    created_at: CreatedAt


class LayersOut(BaseModel):
    """Layers that the next context shows after the conversation, in this order."""

    sources: LayerOut | None = Field(description="Sources that the agent works with; null if the layer is not set.")
    announce: LayerOut | None = Field(
        description="Announcements of the agent while it works; null if the layer is not set."
    )
