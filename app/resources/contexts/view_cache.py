"""Loaded views, kept in memory: events never change, so the next call examines only the new ones.

A view is held as its last context left it (`after_context`), and extended by appends, reports and layers.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Any, Final
from uuid import UUID
from weakref import WeakValueDictionary

from app.core import dataclass, replace
from app.core.assembly.assemble import Assembled, NewCall
from app.core.assembly.inputs import LastContext, LoadedView, ViewSettings
from app.core.log.appends import Batch, as_stored
from app.core.log.event import Event
from app.core.memory.cover import Summary
from app.core.plan.pipeline import Plan
from app.core.plan.state.context import NOTHING_UNREAD
from app.core.plan.state.frontier import Frontier
from app.core.plan.update import EarlierPlan
from app.core.render.layers import Layer
from app.core.tokens.calibration import Calibration, Reported
from app.core.tokens.counter import Counter
from app.core.tokens.learned import Learned
from app.store.log import AppendResult
from app.store.reports import ReportedView

CHARS_MAX: Final = 16_000_000
"""Limit on the characters held here, and on those in `NewestEvents`; Python objects take several times that."""
EVENT_CHARS: Final = 500
"""Memory of an event besides its text, in characters of text: 1.7 kB were measured, at three bytes a character."""
VIEW_CHARS: Final = 2_000
"""Memory of a view besides its events, in characters of text."""


@dataclass(frozen=True, slots=True)
class CachedView:
    """A loaded view, its settings and counter, and the last context of its epoch, None if it must be planned anew.

    `call` is the record of its last context, `stored` the view's row after the last report, None until one comes.
    `recounted` are its first events, as `counter` counts them; None if the session's own counter is the same.
    `is_steady`: as far as this process knows, nothing was appended through another process since the view was read; if
    not, the next request reads it again. `chars` is its size (`events_chars`, VIEW_CHARS, and `last_context`'s texts).
    """

    loaded: LoadedView
    settings: ViewSettings
    counter: Counter
    call: NewCall
    recounted: tuple[Event, ...] | None
    last_context: LastContext | None
    is_steady: bool
    chars: int
    stored: ReportedView | None = None


def events_chars(events: Iterable[Event]) -> int:
    """Return the size of events in characters, with the memory besides their texts."""
    return sum(event.chars + EVENT_CHARS for event in events)


def after_context(assembled: Assembled, compaction: str, *, is_steady: bool) -> CachedView:
    """Return the view that its next context starts from."""
    inputs, rendered, new = assembled.inputs, assembled.rendered, assembled.epoch
    last = tuple(point.seq for point in rendered.request.breakpoints)
    loaded = replace(inputs.loaded, last_breakpoints=last, used_at=inputs.now, compaction=compaction)
    counted, context = inputs.events, rendered.plan.context
    if new is not None:
        context = context.with_nothing_unread()
        counted = _visible_events(counted, rendered.plan)
        events = counted if inputs.events is loaded.events else _visible_events(loaded.events, rendered.plan)
        loaded = replace(
            loaded,
            view=new.view_row,
            epoch=new.epoch,
            epoch_head=new.head,
            frontier=new.frontier,
            folded=_folded_summaries(loaded, new.frontier),
            events=events,
            unread=NOTHING_UNREAD,
        )
    before = inputs.last_context
    if new is None and before is not None:
        chars = before.chars + events_chars(loaded.events[before.plan.count :])
    else:
        chars = VIEW_CHARS + events_chars(loaded.events)
    last_context = None
    if not loaded.unread.to_seq:
        plan = EarlierPlan(context, loaded.frontier, len(counted))
        last_context = LastContext(plan, rendered.settled, rendered.evictions, chars)
    return CachedView(
        loaded=loaded,
        settings=inputs.settings,
        counter=inputs.counter,
        call=assembled.call,
        recounted=None if inputs.events is inputs.loaded.events else counted,
        last_context=last_context,
        is_steady=is_steady,
        chars=chars + rendered.settled.chars,
    )


def _folded_summaries(loaded: LoadedView, state: Frontier) -> tuple[Summary, ...]:
    known = {one.id: one for one in (*loaded.folded, *(loaded.finer or ()), *loaded.cover)}
    return tuple(known[fold.id] for fold in state.folds)


def _visible_events(events: tuple[Event, ...], planned: Plan) -> tuple[Event, ...]:
    """Return the events that the store would read under the plan's frontier, without the bodies of stubs."""
    floor, context = planned.state.floor, planned.context
    stubbed = {item.event.seq for item in context.items if item.event.body is None}
    kept = {event.seq for event in context.prefix}
    kept.update(takewhile(lambda seq: seq <= floor, (item.event.seq for item in context.items)))
    return tuple(
        replace(event, body=None, chars=0) if event.seq in stubbed and event.body is not None else event
        for event in events
        if event.seq > floor or event.seq in kept
    )


@dataclass(frozen=True, slots=True)
class AddedEvents:
    """A batch that was appended, and its stored bodies."""

    applied: AppendResult
    batch: Batch
    bodies: Sequence[str]


@dataclass(frozen=True, slots=True)
class ReportResults:
    """The values that a report changes; None: no change. `reported`: the usage of `view`'s last call. `learned`: the
    view's calibration, and its version. `stored`: the view's row. `calibration`: that of `model`."""

    view: str
    model: str | None
    calibration: Calibration | None
    reported: Reported | None
    learned: tuple[Learned, int] | None
    stored: ReportedView | None


def with_events(held: CachedView, added: AddedEvents) -> CachedView | None:
    """Return a view extended by a batch; None if the batch does not follow its last event."""
    before, batch = added.applied.before, added.batch
    if held.loaded.head != before.head:
        return None
    bodies, chars = [placed.draft.body() for placed in batch.placed], [*map(len, added.bodies)]
    events = as_stored(before, batch, bodies, added.applied.stored_at, chars)
    loaded = replace(
        held.loaded,
        log_tokens=before.tokens + batch.tokens,
        head=before.head + len(events),
        real_head=before.head + len(events),
        turn=events[-1].turn,
        events=held.loaded.events + events,
        compaction="scheduled" if added.applied.is_due else held.loaded.compaction,
    )
    return replace(held, loaded=loaded, chars=held.chars + sum(chars) + EVENT_CHARS * len(chars))


def with_report(held: CachedView, view: str, report: ReportResults) -> CachedView:
    """Return a view of the name `view` with a report's results."""
    loaded, known = held.loaded, report.calibration
    changes: dict[str, Any] = {}
    if report.reported is not None and report.view == view:
        changes["reported"] = report.reported
    if report.learned is not None and report.view == view:
        changes["learned"], changes["learned_version"] = report.learned
    if known is not None and loaded.view is not None and loaded.view.model == report.model:
        others = [one for one in loaded.calibrations if one.estimator != known.estimator]
        changes["calibrations"] = (*others, known)
    stored = (report.stored if report.view == view else None) or held.stored
    if loaded.learned is not None and loaded.learned is changes.get("learned"):
        return replace(held, stored=stored)  # a step planned with these results
    return replace(held, loaded=replace(loaded, **changes), stored=stored)


class ViewCache:
    """The most recently used views.

    They are never trusted: the store records a call made from one only if the session still has the head and version
    that were read, so changes need not drop them. Only a redaction does (`forget`), so that erased content leaves the
    memory. Changes that may come with every call (an append, another layer, a reported outcome) are added to the held
    views, so that they can be used again.
    """

    def __init__(self, chars_max: int = CHARS_MAX) -> None:
        self._chars_max = chars_max
        self._chars = 0
        self._held: OrderedDict[tuple[UUID, str], CachedView] = OrderedDict()
        self._views: dict[UUID, set[str]] = {}
        self._epoch_locks: WeakValueDictionary[tuple[UUID, str], asyncio.Lock] = WeakValueDictionary()

    def epoch_lock(self, session_id: UUID, view: str) -> asyncio.Lock:
        """Return the lock for opening an epoch of a view: of concurrent requests only one would succeed."""
        return self._epoch_locks.setdefault((session_id, view), asyncio.Lock())

    def get(self, session_id: UUID, view: str) -> CachedView | None:
        """Return the held view, or None."""
        return self._held.get((session_id, view))

    def of_call(self, session_id: UUID, call_id: UUID) -> CachedView | None:
        """Return the held view whose last call this is, or None."""
        views = (self._held[session_id, view] for view in self._views.get(session_id, ()))
        return next((held for held in views if held.call.call_id == call_id), None)

    def put(self, view: str, read: CachedView) -> None:
        """Hold a view, with its predecessor's `stored`, unless that has newer events of the same epoch."""
        session_id = read.loaded.session_id
        held = self._held.get((session_id, view))
        if held and held.loaded.epoch == read.loaded.epoch and held.loaded.head > read.loaded.head:
            return
        self._held[session_id, view] = read if held is None else replace(read, stored=held.stored)
        self._held.move_to_end((session_id, view))
        self._views.setdefault(session_id, set()).add(view)
        self._chars += read.chars - (held.chars if held else 0)
        while self._chars > self._chars_max:
            self._drop(next(iter(self._held)))

    def add_events(self, session_id: UUID, added: AddedEvents) -> None:
        """Extend the held views of a session by events that have been appended."""
        for view in list(self._views.get(session_id, ())):
            held = self.get(session_id, view)
            longer = None if held is None else with_events(held, added)
            if longer is not None:
                self.put(view, longer)

    def add_report(self, session_id: UUID, report: ReportResults) -> None:
        """Add a report's results to the held views of its session."""
        for view in self._views.get(session_id, ()):
            self._held[session_id, view] = with_report(self._held[session_id, view], view, report)

    def set_layers(self, session_id: UUID, since: int, version: int, layers: tuple[Layer, ...]) -> None:
        """Set the layers of held views that have the version `since`; `version` is the new one."""
        for view in self._views.get(session_id, ()):
            held = self._held[session_id, view]
            if held.loaded.version == since:
                loaded = replace(held.loaded, layers=layers, version=version)
                self._held[session_id, view] = replace(held, loaded=loaded)

    def forget(self, session_id: UUID) -> None:
        """Drop the held views of a session."""
        for view in list(self._views.get(session_id, ())):
            self._drop((session_id, view))

    def _drop(self, key: tuple[UUID, str]) -> None:
        held = self._held.pop(key, None)
        if held is None:
            return
        self._chars -= held.chars
        session_id, view = key
        self._views[session_id].discard(view)
        if not self._views[session_id]:
            del self._views[session_id]
