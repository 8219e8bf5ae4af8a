"""Turns, and the layers an agent shows while it works."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

from app.api.schemas.common import Closed
from app.api.schemas.events import AppendedOut

LayerKind = Literal["sources", "announce"]


class TurnOut(BaseModel):
    """One turn; `to_seq` is the last event before the next one begins. `interrupted`: explicitly started, and another
    turn began before it was ended."""

    turn: int
    turn_id: str | None
    from_seq: int
    to_seq: int
    state: Literal["running", "ended", "interrupted"]
    tokens: int
    events: int


class TurnPage(BaseModel):
    """In order. Events before the first turn are in none."""

    items: list[TurnOut]
    next_cursor: str | None


class TurnEndIn(Closed):
    """The end of the running turn."""

    turn_id: str | None = Field(None, min_length=1, max_length=256, description="End it only if this is its id.")


class AnnounceRef(BaseModel):
    """Where an announce is in the log now."""

    seq: int
    tokens: int


class TurnEndedOut(AppendedOut):
    """The answer to the append that ended it. `ended`: whether this request did; otherwise it had ended before, and
    nothing was appended. `announce`: what of the layers went into the log."""

    turn: int
    turn_id: str | None
    ended: bool
    announce: AnnounceRef | None


class LayerIn(Closed):
    """The whole layer: text, or parts as an event has them."""

    content: str | list[dict[str, Any]]


class LayerOut(BaseModel):
    """A layer as it stands. `tokens` by the session's estimator; `turn`: the explicitly started turn it goes with."""

    kind: LayerKind
    version: int
    content: str | list[dict[str, Any]]
    tokens: int
    turn: int | None
    created_at: datetime


class LayersOut(BaseModel):
    """What the next context shows behind the conversation, in this order."""

    sources: LayerOut | None
    announce: LayerOut | None
