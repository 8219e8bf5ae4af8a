"""The disposition of each event of a context, and its evictions as the fewest possible runs."""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import pairwise
from operator import attrgetter
from typing import Any, Final

from app.core import dataclass, replace
from app.core.log.event import Event
from app.core.log.events import BOOKKEEPING, EventType, Json
from app.core.plan.state.context import Context
from app.core.plan.state.frontier import Drop, Fold, Frontier, Stub
from app.core.render.formats.fit import Loss

PREFIX: Final = "prefix"
"""The reducer that replaces system prompts and tool lists by newer ones."""


@dataclass(frozen=True, slots=True)
class Eviction:
    """Events from_seq..to_seq that were not sent verbatim.

    A `stubbed` or `replaced` run applies only to those of its events that are of the first one's type, any other run to
    all of its events. No run applies to an event that is shown whole.
    """

    from_seq: int
    to_seq: int
    disposition: str
    reducer: str
    reason: str
    tokens_saved: int


FORMAT: Final = "format"
"""The reducer of evictions that only the request's format makes."""
_FIELDS: Final = tuple(field.name for field in fields(Eviction))


def eviction_row(row: Eviction) -> dict[str, Json]:
    """Return an eviction as it is stored and as the API returns it."""
    return {name: getattr(row, name) for name in _FIELDS}


def eviction_of(row: Mapping[str, Any]) -> Eviction:
    """Return a stored eviction as a value."""
    return Eviction(**row)


def format_evictions(losses: Iterable[Loss], form: str) -> tuple[Eviction, ...]:
    """Return evictions for content that a format cannot express: one per run of blocks of a kind with the same loss.

    They belong to one call's rendering, so no epoch records them. The log and other formats keep the content.
    """
    runs: dict[tuple[str, str], tuple[Eviction, int]] = {}
    done: list[Eviction] = []
    for loss in losses:
        key = (loss.kind.value, loss.what)
        run, last = runs.get(key, (None, -2))
        if run is not None and loss.number <= last + 1:
            run = replace(run, to_seq=loss.seq)
        else:
            if run is not None:
                done.append(run)
            run = Eviction(loss.seq, loss.seq, "replaced", FORMAT, loss_reason(loss, form), 0)
        runs[key] = (run, loss.number)
    return (*done, *(run for run, _ in runs.values()))


def loss_reason(loss: Loss, form: str) -> str:
    """Return the reason of the eviction for content that a format cannot express."""
    return f"no_{loss.what}_in_{form.replace('-', '_')}"


def evictions(state: Frontier, context: Context) -> tuple[Eviction, ...]:
    """Return all evictions in seq order, in the fewest runs: one for consecutive events of one type with one reason.

    Results are consecutive if no whole result is between them, calls if no whole call is.
    """
    rows = [Eviction(d.from_seq, d.to_seq, "dropped", d.reducer, d.reason, d.tokens) for d in state.drops]
    rows += [Eviction(s.seq, s.seq, "replaced", PREFIX, "superseded", s.tokens) for s in state.superseded]
    rows += map(fold_eviction, state.folds)
    if state.stubs:
        rows += _stubbed(state.stubs, context)
    return without_shown(rows, state)


def left_out_tokens(rows: Iterable[Eviction]) -> int:
    """Return the tokens that these evictions save, in the estimator's own tokens.

    Replaced system prompts and tool lists do not count: a request has only the newest ones in any case.
    """
    return sum(row.tokens_saved for row in rows if row.reducer != PREFIX)


def input_if_sent(tokens: int, outside: int, estimate: int, left_out: int) -> int:
    """Return the input to expect of a context in place of the whole log, whose request had `tokens` of input.

    `outside` of them are sent with both. The context's estimate is `estimate`, and it leaves out `left_out`.
    """
    outside = min(outside, tokens)
    return outside + round((tokens - outside) * estimate / max(1, estimate + left_out))


def without_shown(rows: Iterable[Eviction], state: Frontier) -> tuple[Eviction, ...]:
    """Return the rows in seq order, with the runs of folds split around events that are shown or have their own run.

    The last part of a split run has all of its `tokens_saved`. Rows that are already split do not change.
    """
    excluded = {*state.kept, *state.system_seqs, state.tools_seq, *(row.seq for row in state.superseded)}
    split: list[Eviction] = []
    for row in rows:
        if row.reducer != "fold":
            split.append(row)
            continue
        parts = _without((row.from_seq, row.to_seq), excluded)
        split += [replace(row, from_seq=first, to_seq=last, tokens_saved=0) for first, last in parts]
        if parts:
            split[-1] = replace(split[-1], tokens_saved=row.tokens_saved)
    return tuple(sorted(split, key=lambda row: row.from_seq))


def newly_left_out(before: Frontier, after: Frontier) -> dict[str, tuple[int, int]]:
    """Return, by reducer, the number of events that an epoch newly leaves out or shortens and the tokens this saves."""
    same = set(map(id, before.stubs))  # most are the same objects: comparing each would take longer than planning
    stubs = [stub for stub in after.stubs if id(stub) not in same]
    saved = {stub.seq: stub.saved for stub in before.stubs} if stubs else {}
    grown: dict[str, tuple[int, int]] = {}
    for stub in stubs:
        if stub.saved > saved.get(stub.seq, 0):
            _add(grown, stub.reducer, stub.seq not in saved, stub.saved - saved.get(stub.seq, 0))
    known = _runs(before)
    for reducer, (events, tokens) in _runs(after).items():
        more = events - known.get(reducer, (0, 0))[0], tokens - known.get(reducer, (0, 0))[1]
        if max(more) > 0:
            _add(grown, reducer, max(0, more[0]), max(0, more[1]))
    return grown


def _runs(state: Frontier) -> dict[str, tuple[int, int]]:
    """Return, by reducer, the events and tokens left out in runs: drops, folds and superseded events."""
    sums: dict[str, tuple[int, int]] = {}
    for drop in state.drops:
        _add(sums, drop.reducer, drop.to_seq - drop.from_seq + 1, drop.tokens)
    for one in state.superseded:
        _add(sums, PREFIX, 1, one.tokens)
    for row in without_shown(map(fold_eviction, state.folds), state):
        _add(sums, row.reducer, row.to_seq - row.from_seq + 1, row.tokens_saved)
    return sums


def _add(sums: dict[str, tuple[int, int]], reducer: str, events: int, tokens: int) -> None:
    all_events, all_tokens = sums.get(reducer, (0, 0))
    sums[reducer] = (all_events + events, all_tokens + tokens)


def evicted_ranges(state: Frontier) -> tuple[tuple[int, int], ...]:
    """Return the seqs that are not shown as logged, as disjoint ranges (first, last) in order.

    Events left out only by an author filter or because of their type are not included.
    """
    runs = [(d.from_seq, d.to_seq) for d in state.drops] + [(f.from_seq, f.to_seq) for f in state.folds]
    whole = set(state.kept) - {stub.seq for stub in state.stubs}
    ranges = [part for run in runs for part in _without(run, whole)]
    ranges += [(s.seq, s.seq) for s in state.stubs] + [(s.seq, s.seq) for s in state.superseded]
    joined: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return tuple(joined)


def _without(run: tuple[int, int], seqs: Collection[int]) -> list[tuple[int, int]]:
    """Return the parts of a range that remain without `seqs`."""
    ends = [run[0] - 1, *sorted(seq for seq in seqs if run[0] <= seq <= run[1]), run[1] + 1]
    return [(a + 1, b - 1) for a, b in pairwise(ends) if a + 1 <= b - 1]


def stable_tokens(context: Context, state: Frontier, before: Frontier, changed_seq: int) -> int:
    """Return the number of tokens of a new epoch's context before its first change from the previous epoch."""
    if (state.tools_seq, state.system_seq) != (before.tools_seq, before.system_seq):
        return 0
    stable = sum(event.tokens for event in context.prefix)
    if changed_seq == 0:
        return stable
    stable += context.summary_tokens + context.note_tokens
    return stable + sum(item.tokens for item in context.items if item.event.seq < changed_seq)


def tokens_up_to(context: Context, state: Frontier, seqs: Collection[int]) -> dict[int, int]:
    """Return the context's tokens up to and including the item, note or summary at each of `seqs` that has one."""
    front = sum(event.tokens for event in context.prefix)
    found = {event.seq: front for event in context.prefix if event.seq in seqs}
    front += context.summary_tokens
    total = front + context.note_tokens + sum(context.item_tokens)
    wanted = set(seqs) - found.keys()
    for unit in reversed(context.units):  # most seqs are near the end
        if not wanted:
            return found
        for item in reversed(unit.all_items):
            if item.event.seq in wanted:
                wanted.discard(item.event.seq)
                found[item.event.seq] = total
            total -= item.tokens
    if state.note and state.floor in wanted:
        found[state.floor] = total
    found |= dict.fromkeys(wanted & {block.seq for block in context.summaries}, front)
    return found


def fold_eviction(fold: Fold) -> Eviction:
    """Return the eviction that a fold causes."""
    if fold.shown:
        return Eviction(fold.from_seq, fold.to_seq, "summarized", "fold", f"summary {fold.id}", fold.saved)
    saved = fold.saved + fold.tokens
    return Eviction(fold.from_seq, fold.to_seq, "dropped", "fold", f"clipped summary {fold.id}", saved)


def _stubbed(stubs: Sequence[Stub], context: Context) -> list[Eviction]:
    order = _order(context, {stub.seq for stub in stubs})
    runs: dict[tuple[EventType, str, str, str], list[Stub]] = {}
    last: dict[tuple[EventType, str, str, str], int] = {}
    done: list[list[Stub]] = []
    for stub in stubs:
        if stub.seq not in order:
            continue
        kind, index = order[stub.seq]
        key = (kind, stub.disposition, stub.reducer, stub.reason)
        if key in runs and index == last[key] + 1:
            runs[key].append(stub)
        else:
            runs[key] = [stub]
            done.append(runs[key])
        last[key] = index
    return [_run(run) for run in done]


def _run(stubs: Sequence[Stub]) -> Eviction:
    first, saved = stubs[0], sum(stub.saved for stub in stubs)
    return Eviction(first.seq, stubs[-1].seq, first.disposition, first.reducer, first.reason, saved)


def _order(context: Context, seqs: Collection[int]) -> dict[int, tuple[EventType, int]]:
    """Return, for each visible event in `seqs`, its type and its position among the events of that type, from 1."""
    counts = dict.fromkeys(EventType, 0)
    order: dict[int, tuple[EventType, int]] = {}
    for item in context.items:
        event = item.event
        counts[event.type] += 1
        if event.seq in seqs:
            order[event.seq] = (event.type, counts[event.type])
    return order


def dispositions(
    events: Iterable[Event], context: Context, state: Frontier, erased: Iterable[int] = ()
) -> dict[int, str]:
    """Return the one disposition of each of `events` (I4); `erased` are the seqs of redacted events."""
    shown = {i.event.seq: i.stub.disposition if i.stub else "verbatim" for i in context.items}
    shown |= {e.seq: "verbatim" for e in context.prefix}
    hidden = HiddenEvents(state)
    found = {event.seq: shown.get(event.seq) or hidden.disposition(event) for event in events}
    return found | {seq: "redacted" for seq in erased if found.get(seq) in ("verbatim", "stubbed", "replaced")}


def disposition_runs(words: Mapping[int, str], folds: Sequence[Fold]) -> list[dict[str, Json]]:
    """Return dispositions in seq order, as runs of neighbours with the same disposition and the same summary."""
    ends = [fold.to_seq for fold in folds]
    runs: list[dict[str, Json]] = []
    for seq, word in words.items():
        about: dict[str, Json] = {"disposition": word}
        if word == "summarized":
            about["summary"] = folds[bisect_left(ends, seq)].id
        last = runs[-1] if runs else None
        if last is not None and all(last.get(name) == about.get(name) for name in ("disposition", "summary")):
            last["to_seq"] = seq
        else:
            runs.append({"from_seq": seq, "to_seq": seq, **about})
    return runs


class HiddenEvents:
    """The events that are not among a context's items, indexed by what hides them."""

    def __init__(self, state: Frontier) -> None:
        self._superseded = {row.seq for row in state.superseded}
        self._folds, self._fold_ends = state.folds, [fold.to_seq for fold in state.folds]
        self._drops, self._drop_ends = state.drops, [drop.to_seq for drop in state.drops]

    def disposition(self, event: Event) -> str:
        """Return the disposition of an event that is not among the context's items."""
        if event.type in BOOKKEEPING:
            return "not_rendered"
        if event.seq in self._superseded:
            return "replaced"
        run = self.run(event.seq)
        if isinstance(run, Fold):
            return "summarized" if run.shown else "dropped"
        return "not_rendered" if run is None else "dropped"

    def run(self, seq: int) -> Fold | Drop | None:
        """Return the fold or the drop that an event belongs to."""
        at = bisect_left(self._fold_ends, seq)
        if at < len(self._folds) and self._folds[at].from_seq <= seq:
            return self._folds[at]
        at = bisect_left(self._drop_ends, seq)
        return self._drops[at] if at < len(self._drops) and self._drops[at].from_seq <= seq else None


def new_evictions(before: Sequence[Eviction], after: Sequence[Eviction]) -> tuple[Eviction, ...]:
    """Return the parts of later evictions whose events the earlier ones did not leave out for the same reason.

    Both are in the order of the log. The tokens that a longer eviction saves in addition are divided by events.
    """
    known: dict[tuple[str, str, str], list[Eviction]] = {}
    for row in before:
        known.setdefault(_decision(row), []).append(row)
    new: list[Eviction] = []
    for row in after:
        earlier = known.get(_decision(row), [])
        at = bisect_left(earlier, row.from_seq, key=attrgetter("to_seq"))
        start, saved, parts = row.from_seq, row.tokens_saved, []
        while at < len(earlier) and earlier[at].from_seq <= row.to_seq:
            parts.append((start, earlier[at].from_seq - 1))
            start, saved, at = earlier[at].to_seq + 1, saved - earlier[at].tokens_saved, at + 1
        parts = [(first, last) for first, last in (*parts, (start, row.to_seq)) if first <= last]
        events = sum(last - first + 1 for first, last in parts)
        for first, last in parts:
            share = max(0, saved) * (last - first + 1) // events
            new.append(replace(row, from_seq=first, to_seq=last, tokens_saved=share))
    return tuple(new)


def _decision(row: Eviction) -> tuple[str, str, str]:
    return row.disposition, row.reducer, row.reason
