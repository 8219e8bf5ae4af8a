"""A view as the store holds it, and all that was read of its session for one context."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from app.core.cover.summaries import Summary
from app.core.log.event import Event
from app.core.plan.context.context import Unread
from app.core.plan.context.frontier import Frontier
from app.core.plan.reducers.visibility import NewestDecision
from app.core.render.layers import Layer
from app.core.tokens.calibration import Calibration, Reported
from app.core.tokens.learned import Learned


@dataclass(frozen=True, slots=True)
class ViewRow:
    """A view's settings and current epoch; `epochs` is the highest epoch number given out.

    `afresh`: why the current epoch has not been written and is planned from nothing.
    """

    policy: tuple[str, int]
    model: str | None
    window_tokens: int
    epoch: int
    epochs: int
    afresh: str | None = None


@dataclass(frozen=True, slots=True)
class LoadedView:
    """Everything one context needs. `head` and `turn` are as of the seq asked for.

    With `head`, `version` tells whether the session has changed since: it grows with every change of the session that
    is no append.
    `used_at` is when the epoch's last call was made, in epoch seconds by its own clock. `cover` are the live summaries
    of every author filter, `finer` what those were made of (None: not looked up), `folded` those that the frontier
    names. `compaction`: none, scheduled or running.
    `redactions` is how many of the session's events were erased when this was read. `calibrations` are those of the
    model it was read for, by estimator, `reported` what the view's last call came to of which that is known, `learned`
    what its own calls have taught, `outside_tokens` what the session says is sent beside the request. `pinned` are the
    seqs that are, `decided` what stands of the events that are read, `decisions` how many there were in all.
    `layers` are the newest of each kind, also those whose turn is over; a context of an earlier seq has none.
    """

    session_id: UUID
    version: int
    session_model: str | None
    session_policy: tuple[str, int]
    estimator: str
    log_tokens: int
    head: int
    real_head: int
    turn: int
    view: ViewRow | None
    epoch: int
    epoch_head: int
    frontier: Frontier
    last_breakpoints: tuple[int, ...]
    used_at: float | None
    created_at: datetime
    events: tuple[Event, ...]
    unread: Unread
    cover: tuple[Summary, ...] = ()
    folded: tuple[Summary, ...] = ()
    finer: tuple[Summary, ...] | None = None
    compaction: str = "none"
    redactions: int = 0
    calibrations: tuple[Calibration, ...] = ()
    reported: Reported | None = None
    pinned: tuple[int, ...] = ()
    decided: tuple[NewestDecision, ...] = ()
    decisions: int = 0
    layers: tuple[Layer, ...] = ()
    outside_tokens: int | None = None
    learned: Learned | None = None
    learned_version: int = 0
