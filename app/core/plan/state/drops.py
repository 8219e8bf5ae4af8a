"""Drops of units and of the unread part, and the note about them."""

from bisect import bisect_right
from collections import Counter as Tally
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Final

from app.core.log.event import Event
from app.core.log.events import ASSISTANT_SIDE, EventType
from app.core.memory.digest.calls import modifications
from app.core.plan.state import wording
from app.core.plan.state.context import Context, Reduced, Unit
from app.core.plan.state.frontier import Drop, Frontier, LeftOut, merge_drops
from app.core.plan.state.stubs import VISIBILITY

EXPIRY: Final = "expiry"
"""The reducer whose drops are left out of the note, because the author set their expiry."""
FILES_MAX: Final = 24
"""The maximum number of modified files that the note names."""
NAME_CHARS_MAX: Final = 200
"""The maximum length of a path that is named."""


def drop_units(
    context: Context, state: Frontier, gone: Sequence[Unit], reducer: str, reason: str, *, noted: bool = True
) -> Reduced:
    """Drop the units `gone` from the context and state; if `noted`, count them in the note about all drops.

    Events that a fold covers make no drop: they were kept in addition to their summary (pinned, or with an open call),
    and count as summarized from now on.
    """
    if not gone:
        return Reduced(context, state)
    items = {item.event.seq: item for unit in gone for item in unit.all_items}
    rest = tuple(i for i in context.items if i.event.seq not in items)
    dropped = [item.event for seq, item in sorted(items.items()) if seq > state.folded_to]
    drops = merge_drops((*state.drops, *(Drop(e.seq, e.seq, e.tokens, reducer, reason) for e in dropped)))
    drops = _join_across_invisible(drops, context, state, items.keys())
    floor = max(state.floor, max(items))
    visible = (*(i.event.seq for i in rest), *(e.seq for e in context.prefix))
    left_out, text, note_tokens = state.left_out, state.note, state.note_tokens
    if noted and dropped:
        noted_units = [unit for unit in gone if unit.items[0].event.seq > state.folded_to]
        left_out = _left_out(left_out, noted_units, rest_turns={i.event.turn for i in rest})
        text = wording.note(left_out)
        note_tokens = context.counter.message(text)
    after = replace(
        state.without(items),
        floor=floor,
        kept=tuple(sorted(seq for seq in visible if seq <= floor)),
        drops=drops,
        left_out=left_out,
        note=text,
        note_tokens=note_tokens,
    )
    return Reduced(replace(context, items=rest, note_tokens=after.note_tokens), after)


def refresh_note(context: Context, state: Frontier) -> Reduced:
    """Write the note again from `state.left_out`; unchanged if nothing was left out."""
    if state.left_out == LeftOut():
        return Reduced(context, state)
    text = wording.note(state.left_out)
    after = replace(state, note=text, note_tokens=context.counter.message(text))
    return Reduced(replace(context, note_tokens=after.note_tokens), after)


def files_named(*runs: Iterable[tuple[int, str]]) -> tuple[tuple[int, str], ...]:
    """Return the newest FILES_MAX files of all runs as (seq, path), each path once, with the last seq that names it.

    Every run has its newest files first, and is read only as long as its files can be among the newest of all.
    """
    last: dict[str, int] = {}
    for run in runs:
        named: dict[str, int] = {}
        for seq, path in run:
            if len(named) >= FILES_MAX and seq < min(named.values()):
                break
            if len(path) <= NAME_CHARS_MAX and path.isprintable():
                named.setdefault(path, seq)
        last |= {path: max(seq, last.get(path, 0)) for path, seq in named.items()}
    return tuple(sorted((seq, path) for path, seq in last.items()))[-FILES_MAX:]


def trim_note(done: Reduced, target: int) -> Reduced:
    """Shorten the note of a context above the target: halve its files, keeping the newest; finally omit all names."""
    while done.context.tokens > target and (left_out := done.state.left_out) != (bare := without_names(left_out)):
        files = left_out.files[(len(left_out.files) + 1) // 2 :]
        left_out = replace(left_out, files=files) if left_out.files else bare
        done = refresh_note(done.context, replace(done.state, left_out=left_out))
    return done


def without_names(left_out: LeftOut) -> LeftOut:
    """Return the counts of events and tokens alone, without turns, tool calls or files."""
    return LeftOut(events=left_out.events, tokens=left_out.tokens)


def rebuild_note(context: Context, state: Frontier) -> Reduced:
    """Count the note again from the remaining drops, which record no turns or calls; no note if all are by expiry."""
    noted = [drop for drop in state.drops if drop.reducer != EXPIRY]
    if not noted:
        after = replace(state, left_out=LeftOut(), note="", note_tokens=0)
        return Reduced(replace(context, note_tokens=0), after)
    events = sum(drop.to_seq - drop.from_seq + 1 for drop in noted)
    files = tuple(f for f in state.left_out.files if any(drop.from_seq <= f[0] <= drop.to_seq for drop in noted))
    left_out = LeftOut(events=events, tokens=sum(drop.tokens for drop in noted), files=files)
    return refresh_note(context, replace(state, left_out=left_out))


def _left_out(before: LeftOut, gone: Iterable[Unit], rest_turns: set[int]) -> LeftOut:
    calls = Tally(dict(before.calls))
    events = tokens = 0
    turns: set[int] = set()
    shown: dict[int, Event] = {}
    for unit in gone:
        turns.add(unit.turn)
        for item in unit.all_items:
            if item.stub is None or item.stub.reducer != VISIBILITY:
                shown[item.event.seq] = item.event
            events += 1
            tokens += item.event.tokens
            if item.event.type is EventType.TOOL_CALL:
                calls[item.event.tool or "a tool"] += 1
    named = sorted(calls.items(), key=lambda pair: (-pair[1], pair[0]))
    return LeftOut(
        before.turns + len(turns - rest_turns),
        before.events + events,
        before.tokens + tokens,
        tuple(named),
        files_named(reversed(before.files), modifications([shown[seq] for seq in sorted(shown)])),
    )


def _join_across_invisible(
    drops: tuple[Drop, ...], context: Context, state: Frontier, gone: Collection[int]
) -> tuple[Drop, ...]:
    """Join neighbouring drops of one reason with only invisible events between them: one run per decision."""
    last = max(gone)
    fixed = {e.seq for e in context.prefix} | {row.seq for row in state.superseded}
    visible = sorted({i.event.seq for i in context.items}.difference(gone) | fixed)
    closed: list[Drop] = []
    for drop in drops:
        before = closed[-1] if closed else None
        same = before is not None and (before.reducer, before.reason) == (drop.reducer, drop.reason)
        if before and same and drop.to_seq <= last:
            next_visible = bisect_right(visible, before.to_seq)
            if next_visible == len(visible) or visible[next_visible] > drop.from_seq:
                closed[-1] = replace(before, to_seq=drop.to_seq, tokens=before.tokens + drop.tokens)
                continue
        closed.append(drop)
    return tuple(closed)


UNREAD: Final = "older_than_what_fits"
"""The reason recorded for drops of the unread part."""


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
