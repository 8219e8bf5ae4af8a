"""The offline optimum: the lowest bill that evictions could achieve if the future were known.

It knows the last use of each result (`meta.grounding`: of the values seen in tool results only, the latest earlier
holder is needed until then), chooses the calls at which to evict, and at each evicts every result that will not be used
again: the shortest path over the calls, exact for that choice. It evicts no arguments, and no result before the model
has seen it once.
"""

from itertools import accumulate
from typing import Final

from app.core.log.events import EventType
from app.core.tokens.counter import REQUEST_TOKENS
from app.core.tokens.models import CacheProfile
from bench.cost.sessions import Session
from palimpsest_tools.bench.rivals import STUB_TOKENS

NEVER: Final = -1


def evictions(session: Session, cache: CacheProfile) -> tuple[set[int] | None, ...]:
    """Return the seqs to evict at each call, None where there are no new ones."""
    steps = _eligible(session)
    path = _cheapest(session, cache, steps)
    return tuple(steps[number] if number in path else None for number in range(len(session.calls)))


def _eligible(session: Session) -> list[set[int]]:
    """Return for each call the seqs of results that have been seen and are not used from that call on."""
    needed: dict[int, int] = {}
    for number, call in enumerate(session.calls):
        for value in call.values:
            if value.only_results:
                needed[max(value.holders)] = number
    results = [e for e in session.events if e.type is EventType.TOOL_RESULT and e.tokens > STUB_TOKENS]
    found: list[set[int]] = []
    for number in range(len(session.calls)):
        seen = session.calls[number - 1].events if number else 0
        found.append({e.seq for e in results if e.seq <= seen and needed.get(e.seq, NEVER) < number})
    return found


def _cheapest(session: Session, cache: CacheProfile, steps: list[set[int]]) -> set[int]:
    """Return the numbers of the calls to evict at."""
    rendered = [event.tokens if event.rendered else 0 for event in session.events]
    fixed = session.prefix_tokens + REQUEST_TOKENS + sum(e.tokens for e in session.events if not e.rendered)
    sizes = [0, *accumulate(rendered)]
    saved = {number: _saved(session, step) for number, step in enumerate(steps)}
    saved[NEVER] = [0] * (len(session.events) + 1)

    def size(state: int, events: int) -> int:
        return fixed + sizes[events] - saved[state][events]

    def price(read: int, total: int) -> float:
        return cache.read_price * read + cache.write_price * (total - read)

    best: dict[int, tuple[float, tuple[int, ...]]] = {NEVER: (0.0, ())}
    for number, call in enumerate(session.calls):
        before = session.calls[number - 1] if number else None
        cold = before is None or call.at - before.at >= cache.ttl_seconds
        stay: dict[int, tuple[float, tuple[int, ...]]] = {}
        moves: list[tuple[float, tuple[int, ...]]] = []
        for state, (paid, path) in best.items():
            held = 0 if cold or before is None else size(state, before.events)
            stay[state] = (paid + price(held, size(state, call.events)), path)
            new = steps[number] - (steps[state] if state != NEVER else set())
            if new:
                first = min(min(new) - 1, before.events if before else 0)
                read = 0 if cold else size(state, first)
                moves.append((paid + price(read, size(number, call.events)), (*path, number)))
        best = stay
        if moves:
            best[number] = min(moves)
    return set(min(best.values())[1])


def _saved(session: Session, gone: set[int]) -> list[int]:
    """Return for each n the tokens saved in the first n events."""
    return [0, *accumulate(e.tokens - STUB_TOKENS if e.seq in gone else 0 for e in session.events)]
