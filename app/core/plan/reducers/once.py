"""Large results that only one call shows whole: after its last cache marker, and as stubs in all later calls.

They are never written to the cache, so stubbing them costs nothing. This requires a cache that is written at markers
only, and enough tokens before the results to be cached. Files that the agent has modified, recalled events and content
that it reads again are cached as usual.
"""

from bisect import bisect_left, bisect_right
from math import ceil, inf
from posixpath import normpath
from typing import Final

from app.core import dataclass, replace
from app.core.lexicon.identifiers import is_recall_tool
from app.core.log.event import Event
from app.core.log.events import EventType
from app.core.plan.reducers.earnings import earnings_so_far, last_unit_seq
from app.core.plan.state.context import Context, Reduced
from app.core.plan.state.frontier import Frontier
from app.core.plan.state.items import Item
from app.core.plan.state.results import use_of
from app.core.plan.state.stubs import LISTING_TOKENS_MAX, Candidate, apply_stubs, stubs_for
from app.core.policy.groups import Retention
from app.core.policy.policy import Policy
from app.core.tokens.budget import Budget
from app.core.tokens.models import CacheProfile

REDUCER: Final = "once"
REASON: Final = "seen_once"


@dataclass(frozen=True, slots=True)
class OnceReducer:
    """Stubs results of at least `tokens` tokens that the last call was the first to show. Does nothing if it is None.

    `outside` tokens are sent before the context.
    """

    retention: Retention
    tokens: int | None
    cache: CacheProfile
    outside: int

    def reduce(self, context: Context, budget: Budget, state: Frontier) -> Reduced:
        """Stub the results, however little that saves.

        The frontier's earnings are reduced by what the new stubs would have saved in earlier calls, had they existed.
        """
        shown_once = [Candidate(item, REASON, item.event.seq, item.tokens) for item in self._unstubbed(context)]
        done = apply_stubs(context, state, stubs_for(context, shown_once, self.retention.identifiers, REDUCER))
        excess = ceil(earnings_so_far(context, done.state, self.cache) - earnings_so_far(context, state, self.cache))
        return Reduced(done.context, replace(done.state, earned=done.state.earned - excess)) if excess else done

    def idle(self, context: Context, state: Frontier) -> bool:
        """Return whether there is nothing to stub."""
        return not self._unstubbed(context)

    def shown_from(self, context: Context) -> int:
        """Return the first seq after the last cache marker of this call; 0 if all of it may be cached."""
        shown = () if self.tokens is None else self._results(context, 1)
        return min((item.event.seq for item in shown), default=0)

    def written_to(self, context: Context) -> int:
        """Return the seq before which the last call wrote the context to the cache."""
        return min((item.event.seq for item in self._results(context, 2)), default=last_unit_seq(context))

    def _unstubbed(self, context: Context) -> list[Item]:
        return [item for item in reversed(self._results(context, 2)) if item.stub is None]

    def _results(self, context: Context, reply: int) -> list[Item]:
        """Return the results to show once, newest first: those of the calls in the model's last reply (1), or in the
        one before it (2).

        Everything after the oldest of them is not cached either and is written one call later. Results for which that
        costs more than it saves are not returned.
        """
        rounds, cache = context.rounds, self.cache
        if self.tokens is None or cache.lookback_blocks is None or len(rounds.seqs) < reply:
            return []
        first, end = rounds.seqs[-reply], inf if reply == 1 else rounds.seqs[1 - reply]
        units = context.units[bisect_left(rounds.firsts, first) : bisect_left(rounds.firsts, end)]
        found: list[Item] = []
        count, gain = 0, 0.0
        for item in reversed([item for unit in units for item in unit.all_items if item.event.seq < end]):
            if not self._is_shown_once(context, item):
                gain -= (1 - cache.read_price) * item.event.tokens
                continue
            gain += (cache.write_price - 1) * item.event.tokens
            found.append(item)
            count = len(found) if gain >= 0 else count
        return found[:count]

    def _is_shown_once(self, context: Context, item: Item) -> bool:
        event, rounds = item.event, context.rounds
        rule = self.retention.rule(event.tool)
        if event.type is not EventType.TOOL_RESULT or rule is None or event.pinned or event.seq in context.shown_again:
            return False
        if event.tokens < max(self.tokens or 0, rule.min_tokens or 0):
            return False
        if event.density > self.retention.dense and event.tokens < LISTING_TOKENS_MAX:
            return False
        if is_recall_tool(event.tool) or _is_repeated(context, event):
            return False
        if self.retention.working_set and _is_worked_on(context, event):
            return False
        unit = bisect_right(rounds.firsts, event.call_seq or event.seq) - 1
        in_front = self.outside + context.tokens - rounds.tokens + rounds.tokens_before[unit]
        return in_front >= self.cache.minimum_tokens


def once_reducer(policy: Policy, cache: CacheProfile, outside: int, *, recall: bool) -> OnceReducer:
    """Return a policy's reducer. It does nothing unless evictions are economic and the agent can recall events."""
    tokens = policy.economics.once_tokens if recall and policy.evict == "economic" else None
    return OnceReducer(policy.retention, tokens, cache, outside)


def _is_worked_on(context: Context, result: Event) -> bool:
    """Return whether a result shows a file that was modified before: the next edit of it may quote the result."""
    call = context.item(result.call_seq or 0)
    if call is None or call.event.body is None:
        return False
    since = context.worked_files.modified
    return any(since.get(normpath(path), result.seq) < result.seq for path in use_of(call.event).read)


def _is_repeated(context: Context, result: Event) -> bool:
    """Return whether an earlier result showed the same; a second one is cached, to avoid a third read."""
    call = context.item(result.call_seq or 0)
    if call is None or call.event.body is None:
        return False
    keys = call.event.request_keys if call.event.has_single_argument else call.event.request_keys[:1]
    for pair in context.paired_results:
        before, earlier = pair.result.event, pair.call
        if before.seq >= result.seq:
            break
        if earlier is None or before.is_error:
            continue
        if keys and not set(keys).isdisjoint(earlier.event.request_keys):
            return True
        same = before.tool == result.tool and before.tokens == result.tokens
        if same and earlier.event.arguments == call.event.arguments:
            return True
    return False
