"""The economics of evictions: when they are worth their price.

A provider bills a cached prefix at `r` and a written one at `w` times its input price. An eviction rewrites everything
after it once, for (w - r) times its tokens, and saves r times the evicted tokens at every later call. The number of
later calls is unknown, as in the ski rental problem. So candidates wait in a queue until carrying them has cost
`factor` times the current cost of rewriting, or are evicted immediately if this call alone saves as much.

This call may also be the last. Evictions earn at a cold cache, where they are free, and with every later call that
does not read the evicted tokens (see `earnings`). These earnings and the share `at_risk` of the cost of sending
everything so far must cover the rewriting. Wherever a run ends, it has cost at most that share more than sending
everything.

If the cache is cold, or the prefix is about to be rewritten anyway, rewriting costs nothing more, and the whole queue
is evicted. Large results that a call kept out of the cache (`once`) are evicted at no cost.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import ceil
from typing import Final, Literal, TypeAlias

from app.core import dataclass
from app.core.plan.reducers.earnings import baseline_cost, earnings_so_far, last_unit_seq, rewrite_cost, with_credit
from app.core.plan.reducers.once import OnceReducer
from app.core.plan.reducers.retention import candidates
from app.core.plan.state.context import Context, Reduced
from app.core.plan.state.frontier import Frontier
from app.core.plan.state.results import held_content, ranked_files, short_search_results
from app.core.plan.state.stubs import Candidate, apply_stubs, stubs_for
from app.core.policy.groups import Economics, Retention
from app.core.tokens.budget import Budget
from app.core.tokens.models import CacheProfile

REDUCER = "economics"
USUAL_SURCHARGE: Final = 1.15
"""The price of writing a token to a five-minute cache less that of reading it; `retention.working_set` assumes it."""

Moment = Literal["warm", "cold", "pressed"]
"""The state that is planned for: the provider holds the prefix, does not hold it, or the budget forces a reduction."""


@dataclass(frozen=True)
class EconomicReducer:
    """Evicts what the retention rules allow, if that pays or the budget demands it.

    `outside` tokens are sent before the context. `called`: the view was called before, at a provider with a cache; if
    not, no call has cached anything of it yet. Events from `keep_from` on stay. `once` identifies the results that the
    last call kept out of the cache; None: there are none.
    """

    retention: Retention
    economics: Economics
    cache: CacheProfile
    moment: Moment
    outside: int = 0
    called: bool = True
    keep_from: int | None = None
    once: OnceReducer | None = None

    def reduce(self, context: Context, budget: Budget, state: Frontier) -> Reduced:
        """Stub the candidates that are due; under pressure all but the held content (`held_content`).

        Small results and listings follow only if the context is then still above its goal.
        """
        if self.moment == "pressed":
            done, stays = Reduced(context, state), held_content(context, self.retention.working_set, budget.goal)
            for forced in (False, True):
                if not forced or done.context.tokens > budget.goal:
                    rest = candidates(done.context, self.retention, forced=forced, before=self.keep_from, stays=stays)
                    done = self._apply(done.context, done.state, rest)
            return done
        going = self.due_candidates(context, state)
        if not going:
            return Reduced(context, state)
        done = self._apply(context, state, going)
        if self.outside + done.context.tokens < self.cache.minimum_tokens:
            return Reduced(context, state)  # the provider would cache nothing and bill it all at every call
        return done if self.moment == "cold" or self._is_covered(context, state, done) else Reduced(context, state)

    def idle(self, context: Context, state: Frontier) -> bool:
        """Return whether nothing is due."""
        return not self.due_candidates(context, state)

    def due_candidates(self, context: Context, state: Frontier) -> tuple[Candidate, ...]:
        """Return the candidates that are due at a warm or cold cache; none if they save too little.

        The result for the last context is kept, because `idle` and `reduce` ask for the same.
        """
        known = vars(self).get("_found")
        if known is not None and known[0] is context and known[1] is state:
            found: tuple[Candidate, ...] = known[2]
            return found
        going, least = candidates(context, self.retention, before=self.keep_from), self.economics.least_tokens
        if going and sum(candidate.saves for candidate in going) >= least:
            going = self.queue(going, context, state)
            if self.moment == "warm" and self.called:
                going = due(context, going, self.cache, self.economics, state, self.outside, self.written_to(context))
            elif self.moment == "warm" or (self.moment == "cold" and not self.economics.on_cold):
                going = ()
        if sum(candidate.saves for candidate in going) < least:
            going = ()
        vars(self)["_found"] = (context, state, going)
        return going

    def queue(self, every: Iterable[Candidate], context: Context, state: Frontier) -> tuple[Candidate, ...]:
        """Return those of all candidates that wait to be evicted, at a warm or cold cache, until that pays."""
        stays = self.working_set(context, state)
        sent_seq = last_unit_seq(context)  # unsent events stay unless the budget demands it
        return tuple(one for one in every if one.item.event.seq not in stays and one.item.event.seq < sent_seq)

    def working_set(self, context: Context, state: Frontier) -> Collection[int]:
        """Return the seqs of the newest file content and search results, which stay unless the budget demands it.

        If a forced reduction spared file content, that stays while the cache is warm: if it went at the next call, one
        reduction would open two epochs. Where cache writes cost more, evictions wait longer anyway, and content stays
        visible for longer after it has left the set, so fewer calls suffice.
        """
        calls = self.retention.working_set
        surcharge = self.cache.write_price - self.cache.read_price
        calls = ceil(calls * min(1.0, USUAL_SURCHARGE / surcharge)) if surcharge > 0 else calls
        was_forced = self.moment == "warm" and (state.folds or state.drops)
        files = context.worked_files.seqs() if calls and was_forced else frozenset(ranked_files(context, calls))
        return files.union(short_search_results(context, calls))

    def _is_covered(self, context: Context, state: Frontier, done: Reduced) -> bool:
        """Return whether earnings cover the price of the stubs at their real size, which `due` can only estimate."""
        head, end = last_unit_seq(context), self.written_to(context)
        paid = with_credit(done.context, state, done.state, self.cache, head, cold=False, outside=self.outside, end=end)
        return paid.earned >= -self.economics.at_risk * baseline_cost(context, state, self.cache, self.outside)

    def written_to(self, context: Context) -> int | None:
        """Return the seq before which the last call wrote the context to the cache; None: as far as it was sent."""
        return None if self.once is None else self.once.written_to(context)

    def _apply(self, context: Context, state: Frontier, going: Sequence[Candidate]) -> Reduced:
        return apply_stubs(context, state, stubs_for(context, going, self.retention.identifiers, REDUCER))


QueuePart: TypeAlias = tuple[int, int, int, float, float, float]
"""The part of a queue of candidates from a seq on, in input tokens: that seq; the tokens that it saves at each call and
those written again after it; the cost of the calls that could have left it out already, the price of rewriting, and the
gain of evicting it at this call alone. A plain tuple, since each context makes one for each candidate."""


def parts(
    context: Context, queue: Sequence[Candidate], cache: CacheProfile, state: Frontier, outside: int, end: int | None
) -> Iterator[QueuePart]:
    """Yield the parts of a queue from the newest candidate alone to all of it, unless no call has sent them yet.

    Carrying counts from the first call that could have left a candidate out, and not before the view began. `end` is as
    in `rewrite_cost`.
    """
    replies = context.rounds.seqs
    costs = rewrite_cost(context, state, cache, outside, end)
    surcharge = cache.write_price - cache.read_price
    carried, saves = 0.0, 0
    for candidate in reversed(queue):
        seq = candidate.item.event.seq
        if seq <= state.began and (not replies or replies[-1] <= state.began):
            continue  # no call of this view has sent it yet
        calls = len(replies) - bisect_right(replies, max(candidate.since, state.began))
        carried += cache.read_price * candidate.saves * calls
        saves += candidate.saves
        rewritten = max(0, costs(candidate.item) - saves)
        price = surcharge * rewritten
        yield seq, saves, rewritten, carried, price, cache.read_price * saves - price


def due(
    context: Context,
    queue: Sequence[Candidate],
    cache: CacheProfile,
    economics: Economics,
    state: Frontier,
    outside: int,
    end: int | None,
) -> tuple[Candidate, ...]:
    """Return the newest part of the queue whose carrying cost exceeds its rewriting cost most; empty if there is none.

    A part that saves at this call as much as it costs does not wait. No part is due that could make the view cost more
    than `at_risk` allows if this were its last call. `end` is as in `rewrite_cost`.
    """
    if not queue:
        return ()
    total = context.tokens + outside
    credit = earnings_so_far(context, state, cache) + cache.read_price * state.saved
    credit += economics.at_risk * baseline_cost(context, state, cache, outside)
    best, start = 0.0, None
    for seq, saves, _, carried, price, now in parts(context, queue, cache, state, outside, end):
        gain = max(carried - economics.factor * price, now)
        if gain > best and credit + now >= 0 and total - saves >= cache.minimum_tokens:
            best, start = gain, seq
    return () if start is None else tuple(c for c in queue if c.item.event.seq >= start)


def payoff_seq(context: Context, saves: Mapping[int, int], cache: CacheProfile) -> int | None:
    """Return the seq from which leaving out the events in `saves` (seq to tokens saved) pays; None if it never does.

    The context's past calls predict the number of later ones: their savings at the read price must cover the rewriting.
    Events after the model's last reply have not been sent, and cost nothing to leave out.
    """
    replies, sent = context.rounds.seqs, last_unit_seq(context)
    best, start, saved, following = 0.0, None, 0, 0
    for item in reversed(context.items):
        seq = item.event.seq
        saved += saves.get(seq, 0)
        if seq < sent:
            following += item.tokens - saves.get(seq, 0)
        if seq in saves:
            gain = len(replies) * cache.read_price * saved - (cache.write_price - cache.read_price) * following
            if gain >= best:
                best, start = gain, seq
    return start
