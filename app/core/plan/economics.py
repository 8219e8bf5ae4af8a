"""When evictions are worth their price.

A provider bills a cached prefix at `r` and a written one at `w` times its input price. Evicting something re-writes all
that stands behind it once, for (w - r) times its tokens, and saves r times what was evicted at every call to come. How
many calls are to come nobody knows. So evictions wait in a queue, and the past stands for the future, as in ski
rental: they are applied once carrying them has cost `factor` times what rewriting costs now. What has been paid is then
never more than (1 + 1/factor) times what it would be had nothing been evicted, nor than with any later eviction: the
more stands behind, the dearer rewriting gets.

When the cache is cold, or the prefix is about to be rewritten anyway, rewriting costs nothing more, and all that waits
is applied.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from app.core.budget import Budget
from app.core.cache import CacheProfile
from app.core.plan.candidates import Candidate, candidates
from app.core.plan.context import ASSISTANT_SIDE, Context, Reduced
from app.core.plan.frontier import Frontier
from app.core.plan.stubs import apply_stubs, stubs_for
from app.core.policy import Economics, Retention

REDUCER = "economics"

Moment = Literal["warm", "cold", "pressed"]
"""Whether the provider still holds the prefix, does not, or the budget forces a reduction."""


@dataclass(frozen=True, slots=True)
class EconomicReducer:
    """Applies what the retention rules allow to go when that pays, or when it must."""

    retention: Retention
    economics: Economics
    cache: CacheProfile
    moment: Moment

    def reduce(self, context: Context, budget: Budget, state: Frontier) -> Reduced:
        """Stubs only. Under pressure first what waits, and if that does not do, small results and listings too."""
        queue = candidates(context, self.retention)
        if self.moment == "warm":
            queue = due(context, queue, self.cache, self.economics.factor, state.began)
        elif self.moment == "cold" and not self.economics.on_cold:
            queue = ()
        if self.moment != "pressed" and sum(candidate.saves for candidate in queue) < self.economics.least_tokens:
            return Reduced(context, state)
        done = self._apply(context, state, queue)
        if self.moment == "pressed" and done.context.tokens > budget.goal:
            done = self._apply(done.context, done.state, candidates(done.context, self.retention, forced=True))
        return done

    def _apply(self, context: Context, state: Frontier, going: Sequence[Candidate]) -> Reduced:
        return apply_stubs(context, state, stubs_for(context, going, self.retention.identifiers, REDUCER))


def due(
    context: Context, queue: Sequence[Candidate], cache: CacheProfile, factor: float, began: int = 0
) -> tuple[Candidate, ...]:
    """Of the queue, the newest part for which carrying has cost most over rewriting; empty while none is worth it.

    Carrying counts from the call after which a candidate could have left, and not before `began`.
    """
    if not queue:
        return ()
    rounds = _rounds(context, queue[0].since)
    best, start, carried, behind = 0.0, None, 0.0, 0
    waiting = {candidate.item.event.seq: candidate for candidate in queue}
    price = factor * (cache.write_price - cache.read_price)
    for item in reversed(context.items):
        candidate = waiting.get(item.event.seq)
        if candidate is None:
            behind += item.tokens
            continue
        calls = len(rounds) - bisect_right(rounds, max(candidate.since, began))
        carried += cache.read_price * candidate.saves * calls
        behind += item.tokens - candidate.saves
        gain = carried - price * behind
        if gain > best:
            best, start = gain, item.event.seq
        if item.event.seq == queue[0].item.event.seq:
            break
    return () if start is None else tuple(c for c in queue if c.item.event.seq >= start)


def worth(context: Context, saves: Mapping[int, int], cache: CacheProfile) -> int | None:
    """From which seq on leaving out `saves` tokens of events pays, all of them together; None: of none of them.

    As many calls are expected as the context shows: what they save at the read price must make up for what is written
    anew. What came after the model's last answer has not been sent, and costs nothing to leave out.
    """
    rounds = _rounds(context, 0)
    sent_to = rounds[-1] if rounds else 0
    best, start, saved, behind = 0.0, None, 0, 0
    for item in reversed(context.items):
        seq = item.event.seq
        saved += saves.get(seq, 0)
        if seq < sent_to:
            behind += item.tokens - saves.get(seq, 0)
        if seq in saves:
            gain = len(rounds) * cache.read_price * saved - (cache.write_price - cache.read_price) * behind
            if gain >= best:
                best, start = gain, seq
    return start


def _rounds(context: Context, after: int) -> list[int]:
    """The seqs at which the model answered, from `after` on: the first of each run of the assistant's events."""
    seqs: list[int] = []
    for unit in reversed(context.units):
        first = unit.items[0].event
        if first.type in ASSISTANT_SIDE:
            seqs.append(first.seq)
        if first.seq <= after:
            break
    seqs.reverse()
    return seqs
