"""Types of `turns`. Written by `make openapi` from the API's document."""

from dataclasses import dataclass
from typing import Literal

from palimpsest._model import Model
from palimpsest.types.events import LoggedEvent, Pressure


@dataclass(frozen=True, kw_only=True)
class AnnounceRef(Model):
    """An announcement that was appended to the log."""

    seq: int
    """Seq of the `announce` event."""
    tokens: int
    """Size of the event as appended, in tokens by the session's estimator."""


@dataclass(frozen=True, kw_only=True)
class TurnEndedOut(Model):
    """Result of ending a turn, with the events that were appended for it."""

    session: str
    """Id of the session, chosen by the client."""
    line: str
    """Id of the session's line that this concerns. Used in a path in place of the session's id, it always means
    this line.
    """
    head: int
    """Seq of the last event in the log after the append."""
    epoch: int
    """Number of the current epoch of the `main` view, 0 before its first context; after a new policy or an
    erasure, a number that no epoch gets: the next context opens the one after it.
    """
    pressure: Pressure
    """Pressure on the `main` view's budget after the append."""
    events: list[LoggedEvent]
    """Events that ended the turn, in the order of the log."""
    turn: int
    """Number of the turn."""
    turn_id: str | None
    """Client's own name of the turn; null if it gave none."""
    ended: bool
    """Whether this request ended the turn; false if it had already ended and nothing was appended."""
    announce: AnnounceRef | None
    """Event made of the content of the layer `announce`; null if the layer was empty."""


@dataclass(frozen=True, kw_only=True)
class TurnOut(Model):
    """A turn: a user's message and everything up to the next one."""

    turn: int
    """Number of the turn, counted from 1."""
    turn_id: str | None
    """Client's own name of the turn; null if it gave none."""
    from_seq: int
    """Seq of the turn's first event."""
    to_seq: int
    """Seq of the turn's last event; for the last turn, the head."""
    state: Literal["running", "ended", "interrupted"]
    """State of the turn: `running` (the last turn, not ended yet), `ended` (by a `turn.end`, or by the next turn)
    or `interrupted` (begun by a `turn.start`, and the next turn began before its `turn.end`).
    """
    tokens: int
    """Size of all events of the turn as logged, in tokens by the session's estimator."""
    events: int
    """Number of events in the turn."""


@dataclass(frozen=True, kw_only=True)
class TurnPage(Model):
    """A page of a session's turns. Events before the first turn belong to no turn."""

    items: list[TurnOut]
    """Turns in order."""
    next_cursor: str | None
    """Cursor of the next page, to be passed as `cursor`; null on the last page."""
