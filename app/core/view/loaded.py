"""A view as stored, and everything read of its session for one context."""

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
    """A view's settings and current epoch; `epochs` is the highest epoch number in use.

    `afresh` is the cause of the next epoch if the next context must be planned from scratch, else None.
    """

    policy: tuple[str, int]
    model: str | None
    window_tokens: int
    epoch: int
    epochs: int
    afresh: str | None = None


@dataclass(frozen=True, slots=True)
class LoadedView:
    """Everything read of a session for one context. `head` and `turn` are as of the requested seq, `real_head` the
    log's.

    `head` and `version` together identify the session's state: every change other than an append raises `version`.
    `used_at` is the time of the epoch's last call, in epoch seconds by that call's own clock.

    `cover` are the live summaries of every author filter, `finer` their sources (None: not read), `folded` those that
    the frontier names. `compaction` is none, scheduled, running or failed. `requested_to` is the last seq summarized by
    compactions that clients requested, 0 without one; `requested_error` is why the last compaction failed, if a client
    requested it. `redactions` is the number of the session's redacted events.

    `calibrations` are those of the requested model, `reported` is the view's last call with reported usage, `learned`
    the facts learned from the view's own calls, `outside_tokens` the tokens stated to be sent outside the requests.

    `pinned` are the pinned seqs, `decided` the newest visibility decision on each event read, `decisions` the number of
    all decisions. `layers` are the newest of each kind, even if their turn is over; a context of an earlier seq has
    none. `moved_to` is the id of the line that the session's name means, None for that line and for any but the first.
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
    requested_to: int = 0
    requested_error: str | None = None
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
    moved_to: str | None = None
