"""Projection: the context that events make under a frontier."""

from collections.abc import Iterable, Sequence

from app.core.log.event import Block, Event
from app.core.log.events import EventType
from app.core.plan.state.context import NOTHING_UNREAD, Context, Unread
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
        items=tuple(items),
        prefix=tuple(prefix),
        turn=turn,
        counter=counter,
        note_tokens=state.note_tokens,
        ephemeral_tokens=ephemeral_tokens,
        unread=unread,
        summaries=summaries,
        summary_tokens=state.summary_tokens,
    )


def _hidden_calls(events: Iterable[Event], shows: ViewFilter) -> frozenset[int]:
    return frozenset(e.seq for e in events if e.type is EventType.TOOL_CALL and shows.leaves_out(e.type, e.author))


def _is_hidden(event: Event, hidden_calls: frozenset[int], shows: ViewFilter) -> bool:
    """Return whether the view leaves an event out; a result is left out with its call, so that pairs stay whole."""
    if event.type is EventType.TOOL_RESULT:
        return event.call_seq in hidden_calls or shows.leaves_out_type(event.type)
    return shows.leaves_out(event.type, event.author)
