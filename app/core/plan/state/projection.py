"""Projection: the context that events make under a frontier, and its extension by new events."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from app.core.log.block import Block
from app.core.log.event import Event
from app.core.log.events import ASSISTANT_SIDE, PREFIX, EventType
from app.core.plan.state.context import NOTHING_UNREAD, Context, PairedResult, Unit, Unread, units
from app.core.plan.state.frontier import Frontier
from app.core.plan.state.items import Item
from app.core.policy.evictions import SHOW_ALL, ViewFilter
from app.core.tokens.counter import Counter


def project(
    events: Sequence[Event],
    state: Frontier,
    counter: Counter,
    *,
    turn: int,
    shows: ViewFilter = SHOW_ALL,
    ephemeral_tokens: int = 0,
    unread: Unread = NOTHING_UNREAD,
    summaries: tuple[Block, ...] = (),
) -> Context:
    """Build the context of `events` under the frontier `state`."""
    stubs = {stub.seq: stub for stub in state.stubs}
    kept = frozenset(state.kept)
    hides = shows != SHOW_ALL
    hidden = _hidden_calls(events, shows) if hides else frozenset()

    def reached(seq: int) -> bool:
        return seq > state.floor or seq in kept

    items = []
    prefix = []
    front = {*state.system_seqs, state.tools_seq}
    for event in events:
        if event.seq in front:
            prefix.append(event)
        elif event.rendered and reached(event.seq) and not (hides and _is_hidden(event, hidden, shows)):
            if event.call_seq is not None and not reached(event.call_seq):
                continue  # the result of a hidden call that is too old to be read
            stub = stubs.get(event.seq)
            items.append(Item(event, stub.tokens if stub else event.tokens, stub))
    return Context(
        tuple(items),
        tuple(prefix),
        turn,
        counter,
        state.note_tokens,
        ephemeral_tokens,
        unread,
        summaries,
        state.summary_tokens,
    )


def _hidden_calls(events: Iterable[Event], shows: ViewFilter) -> frozenset[int]:
    return frozenset(e.seq for e in events if e.type is EventType.TOOL_CALL and shows.leaves_out(e.type, e.author))


def _is_hidden(event: Event, hidden_calls: frozenset[int], shows: ViewFilter) -> bool:
    """Return whether the view leaves an event out; a result is left out with its call, so that pairs stay whole."""
    if event.type is EventType.TOOL_RESULT:
        return event.call_seq in hidden_calls or shows.leaves_out_type(event.type)
    return shows.leaves_out(event.type, event.author)


def grow(before: Context, added: Sequence[Event], *, turn: int, ephemeral_tokens: int) -> Context | None:
    """Append the events `added` to the context `before`, under the same frontier.

    None if they do more than extend the conversation: a new prefix, or a result that is late or whose call is not
    visible. Not for views with a filter.
    """
    tail = before.units[-1:]
    calls = {i.event.seq for unit in tail for i in unit.items if i.event.type is EventType.TOOL_CALL}
    items: list[Item] = []
    for event in added:
        if event.type in PREFIX:
            return None
        if event.type is EventType.TOOL_CALL:
            calls.add(event.seq)
        elif event.type is EventType.TOOL_RESULT and event.call_seq not in calls:
            return None
        if event.rendered:
            items.append(Item(event, event.tokens))
    after = replace(before, items=before.items + tuple(items), turn=turn, ephemeral_tokens=ephemeral_tokens)
    renewed = _extend_tail(tail, items)
    if any(unit.late_results for unit in renewed):
        return None
    history, current = before.item_tokens
    if turn != before.turn:
        history, current = history + current, 0
    for item in items:
        if item.event.turn == turn:
            current += item.tokens
        else:
            history += item.tokens
    closed = {item.event.call_seq for item in items if item.event.type is EventType.TOOL_RESULT}
    opened = {item.event.seq for item in items if item.event.type is EventType.TOOL_CALL}
    # Fill the cached properties from those of `before`, so that nothing is computed over the whole log again.
    by_seq = {item.event.seq: item for unit in (*tail, *units(items)) for item in unit.items}
    new = tuple(
        PairedResult(item, by_seq.get(item.event.call_seq or 0))
        for item in items
        if item.event.type is EventType.TOOL_RESULT
    )
    vars(after).update(
        answers=before.answers + new,
        stubbed=before.stubbed,
        perishable=before.perishable + tuple(item for item in items if item.event.expires),
        repeats=before.repeats.extend(new) if new else before.repeats,
        units=before.units[:-1] + renewed if items else before.units,
        rounds_before=before.rounds_before.extend(unit.size for unit in renewed[:-1])
        if items
        else before.rounds_before,
        item_tokens=(history, current),
        open_calls=(before.open_calls | opened) - closed,
    )
    if "worked_files" in vars(before):
        vars(after)["worked_files"] = before.worked_files.extend(new) if new else before.worked_files
    return after


def _extend_tail(tail: Sequence[Unit], items: Sequence[Item]) -> tuple[Unit, ...]:
    """Group the last unit and the new items into units; the last unit is the same object if no item joins it."""
    joins = bool(tail) and any(
        item.event.type is EventType.TOOL_RESULT or item.event.type in ASSISTANT_SIDE for item in items
    )
    if not joins:
        return (*tail, *units(items))
    last, *new = units((*tail[0].all_items, *items))
    return (*tail, *new) if len(last.all_items) == len(tail[0].all_items) else (last, *new)
