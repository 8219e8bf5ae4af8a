"""Changes of a frontier that the log itself demands: the effective prefix, late results, and the unread part."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

from app.core.log.event import Event
from app.core.log.events import ASSISTANT_SIDE, EventType
from app.core.plan.context.context import Context
from app.core.plan.context.drops import files_named
from app.core.plan.context.frontier import Drop, Frontier, LeftOut, Superseded, merge_drops

UNREAD: Final = "older_than_what_fits"
"""The reason recorded for drops of the unread part."""


def update_prefix(events: Sequence[Event], state: Frontier) -> Frontier:
    """Make the newest system prompts and tool list effective, and mark the earlier ones as superseded.

    Prompts that no conversation event separates take effect together. Of the unread part of the log, `events` may hold
    only a prompt that takes effect.
    """
    spoken = state.floor
    for event in events:
        if event.rendered:
            spoken = max(spoken, event.seq)
        elif event.type is EventType.SYSTEM_PROMPT and event.seq > state.system_seq:
            if spoken < state.system_seq and any(e.seq == state.system_seq for e in events):
                state = replace(state, system_before=state.system_seqs, system_seq=event.seq)
            else:
                for seq in state.system_seqs:
                    state = _supersede(events, state, seq)
                state = replace(state, system_before=(), system_seq=event.seq)
        elif event.type is EventType.TOOLS and event.seq > state.tools_seq:
            state = replace(_supersede(events, state, state.tools_seq), tools_seq=event.seq)
    return state


def drop_unread(context: Context, state: Frontier) -> Frontier:
    """Drop the unread part of the log, except folded events and the events that must stay, which were read.

    A result whose call was not read is dropped too, and so is a round that may have begun in the unread part: providers
    refuse a call without the reasoning that led to it.
    """
    through = context.unread.to_seq
    if through <= state.floor:
        return state
    calls = {i.event.seq for i in context.items if i.event.type is EventType.TOOL_CALL}
    orphans = [i for i in context.items if i.event.type is EventType.TOOL_RESULT and i.event.call_seq not in calls]
    stay = context.protected
    first = next((u for u in context.units if u.items[0].event.seq > through), None)
    if first and first.items[0].event.type in ASSISTANT_SIDE and first.items[0].event.seq not in stay:
        orphans += first.all_items
    orphan_seqs = {item.event.seq for item in orphans}
    stays = {i.event.seq for i in context.items} - orphan_seqs | {e.seq for e in context.prefix}
    accounted = stays | {row.seq for row in state.superseded}
    read_before = sorted(seq for seq in accounted if seq <= through)
    reason = ("last_resort", UNREAD)
    already = sum(d.tokens for d in state.drops) + sum(fold.tokens + fold.saved for fold in state.folds)
    spans = _gaps(state.floor + 1, through, read_before)
    drops = [Drop(a, b, 0, *reason) for a, b in spans]
    if drops:
        drops[-1] = replace(drops[-1], tokens=max(0, context.unread.tokens - already))
    drops += [Drop(i.event.seq, i.event.seq, i.event.tokens, *reason) for i in orphans if i.event.seq > through]
    floor = max((d.to_seq for d in drops), default=through)
    left = state.left_out
    return replace(
        state,
        floor=max(floor, through),
        kept=tuple(sorted(seq for seq in {*state.kept, *stays} if seq <= max(floor, through))),
        drops=merge_drops((*state.drops, *drops)),
        stubs=tuple(s for s in state.stubs if s.seq in stays),
        adopted=tuple(seq for seq in state.adopted if seq in stays),
        left_out=LeftOut(
            turns=max(left.turns, context.unread.turns),
            events=left.events + sum(d.to_seq - d.from_seq + 1 for d in drops),
            tokens=left.tokens + sum(d.tokens for d in drops),
            calls=left.calls,
            files=files_named(
                reversed(left.files),
                (f for f in reversed(context.unread.files) if any(d.from_seq <= f[0] <= d.to_seq for d in drops)),
            ),
        ),
    )


def adopt_late_results(context: Context, state: Frontier) -> Frontier:
    """Adopt results that arrived after later events: show them directly after their calls, as providers demand."""
    late = {seq for unit in context.units for seq in unit.late_results} - set(state.adopted)
    return replace(state, adopted=tuple(sorted({*state.adopted, *late}))) if late else state


def kept_from_folding(context: Context, held: Collection[int] = ()) -> frozenset[int]:
    """Return seqs that no fold removes: protected events, the rounds of those in `held`, and the running turn's rounds
    with events that expire by age.

    Summaries leave out expiring events, so folding them would lose them before their time.
    """
    stays = set(context.protected)
    passing = {i.event.seq for i in context.perishable if i.event.expires_by_age and i.event.turn == context.turn}
    passing.update(held)
    if passing:
        for unit in context.units:
            seqs = {item.event.seq for item in unit.all_items}
            if not passing.isdisjoint(seqs):
                stays |= seqs
    return frozenset(stays)


def _supersede(events: Sequence[Event], state: Frontier, seq: int) -> Frontier:
    old = next((e for e in events if e.seq == seq), None)
    if old is None:
        return state
    return replace(state, superseded=(*state.superseded, Superseded(seq, old.tokens)))


def _gaps(first: int, last: int, taken: Sequence[int]) -> list[tuple[int, int]]:
    """Return the gaps (from, to) between the seqs `taken`, which is sorted, within first..last."""
    gaps, start = [], first
    for seq in taken:
        if seq >= start:
            if seq > start:
                gaps.append((start, seq - 1))
            start = seq + 1
    if start <= last:
        gaps.append((start, last))
    return gaps
