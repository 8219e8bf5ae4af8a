"""Views as they are held in memory for their next context."""

from dataclasses import replace

from app.core.assembly.assemble import Assembled
from app.core.assembly.inputs import LastContext, LoadedView
from app.core.log.event import Event
from app.core.memory.cover import Summary
from app.core.plan.pipeline import Plan
from app.core.plan.state.context import NOTHING_UNREAD
from app.core.plan.state.frontier import Frontier
from app.core.plan.update import EarlierPlan
from app.resources.contexts.view_cache import VIEW_CHARS, CachedView, events_chars


def cached_view(assembled: Assembled, compaction: str, steady: bool) -> CachedView:
    """Return the view that its next context starts from."""
    inputs, rendered, new = assembled.inputs, assembled.rendered, assembled.epoch
    last = tuple(point.seq for point in rendered.request.breakpoints)
    loaded = replace(inputs.loaded, last_breakpoints=last, used_at=inputs.now, compaction=compaction)
    counted = inputs.events
    if new is not None:
        counted = _visible_events(counted, rendered.plan)
        events = counted if inputs.events is loaded.events else _visible_events(loaded.events, rendered.plan)
        loaded = replace(
            loaded,
            view=new.settings,
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
    standing = None
    if not loaded.unread.to_seq:
        plan = EarlierPlan(rendered.plan.context.with_nothing_unread(), loaded.frontier, len(counted))
        standing = LastContext(plan, rendered.settled, rendered.evictions, chars)
    return CachedView(loaded, counted, inputs.counter, standing, steady, chars + rendered.settled.chars)


def _folded_summaries(loaded: LoadedView, state: Frontier) -> tuple[Summary, ...]:
    known = {one.id: one for one in (*loaded.folded, *(loaded.finer or ()), *loaded.cover)}
    return tuple(known[fold.id] for fold in state.folds)


def _visible_events(events: tuple[Event, ...], planned: Plan) -> tuple[Event, ...]:
    """Return the events that the store would read under the plan's frontier, without the bodies of stubs."""
    floor, context = planned.state.floor, planned.context
    stubbed = {item.event.seq: item.event for item in context.items if item.event.body is None}
    kept = {item.event.seq for item in context.items} | {event.seq for event in context.prefix}
    return tuple(
        replace(event, body=None, chars=0) if event.seq in stubbed and event.body is not None else event
        for event in events
        if event.seq > floor or event.seq in kept
    )
