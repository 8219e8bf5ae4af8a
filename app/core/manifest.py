"""Why a render came out as it did: the disposition of every event, as runs whose number follows the decisions."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from app.core.events import BOOKKEEPING, EventType
from app.core.log import Event
from app.core.plan.context import Context
from app.core.plan.frontier import Drop, Frontier, Superseded


@dataclass(frozen=True, slots=True)
class Eviction:
    """Events from_seq..to_seq that were not sent verbatim.

    A `stubbed` run speaks of the tool results inside it, a `replaced` one of the system prompts or tool lists.
    """

    from_seq: int
    to_seq: int
    disposition: str
    reducer: str
    reason: str
    tokens_saved: int


def evictions(state: Frontier, results: Sequence[int]) -> tuple[Eviction, ...]:
    """All evictions in seq order, as few runs as possible.

    `results` are the seqs of all visible tool results in order: stubs are neighbours when no whole result is between.
    """
    rows = [Eviction(d.from_seq, d.to_seq, "dropped", d.reducer, d.reason, d.tokens) for d in state.drops]
    rows += [Eviction(s.seq, s.seq, "replaced", "prefix", "superseded", s.tokens) for s in state.superseded]
    rows += _stubbed(state, results)
    return tuple(sorted(rows, key=lambda row: row.from_seq))


def _stubbed(state: Frontier, results: Sequence[int]) -> list[Eviction]:
    order = {seq: index for index, seq in enumerate(results)}
    runs: list[Eviction] = []
    last_index = -2
    for stub in state.stubs:
        index = order.get(stub.seq, -2)
        last = runs[-1] if runs else None
        if last and index == last_index + 1 and (last.reducer, last.reason) == (stub.reducer, stub.reason):
            runs[-1] = Eviction(
                last.from_seq, stub.seq, "stubbed", stub.reducer, stub.reason, last.tokens_saved + stub.saved
            )
        else:
            runs.append(Eviction(stub.seq, stub.seq, "stubbed", stub.reducer, stub.reason, stub.saved))
        last_index = index
    return runs


def result_seqs(context: Context) -> tuple[int, ...]:
    """The visible tool results in log order."""
    return tuple(i.event.seq for i in context.items if i.event.type is EventType.TOOL_RESULT)


def dispositions(events: Iterable[Event], context: Context, state: Frontier) -> dict[int, str]:
    """For each of `events` exactly one word for what became of it (I4)."""
    shown = {i.event.seq: "stubbed" if i.stub else "verbatim" for i in context.items}
    shown |= {e.seq: "verbatim" for e in context.prefix}
    return {event.seq: shown.get(event.seq) or _absent(event, state.drops, state.superseded) for event in events}


def _absent(event: Event, drops: Sequence[Drop], superseded: Sequence[Superseded]) -> str:
    if event.type in BOOKKEEPING:
        return "not_rendered"
    if any(row.seq == event.seq for row in superseded):
        return "replaced"
    if any(drop.from_seq <= event.seq <= drop.to_seq for drop in drops):
        return "dropped"
    return "not_rendered"
