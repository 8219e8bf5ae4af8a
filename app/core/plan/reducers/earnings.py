"""What evictions have earned so far against sending everything, and what the next one must rewrite in the cache.

Both are in input tokens at full price, and pessimistic. Earnings are rather too low: each call is assumed to have saved
the read price of what was evicted, although a cold cache would have written it. Rewriting is rather too high: a cache
entry that is not known to exist is assumed to be gone.
"""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from math import floor

from app.core.log.events import ASSISTANT_SIDE
from app.core.plan.context.context import Context, Item, Unit
from app.core.plan.context.frontier import Frontier, first_changed
from app.core.tokens.cache_profiles import CacheProfile


def rounds(context: Context, after: int = 0) -> list[int]:
    """The first seq of each of the model's answers behind `after`, preceded by at most one that begins before it."""
    seqs: list[int] = []
    for unit in reversed(context.units):
        first = unit.items[0].event
        if first.type in ASSISTANT_SIDE:
            seqs.append(first.seq)
        if first.seq <= after:
            break
    seqs.reverse()
    return seqs


def sent_to(context: Context) -> int:
    """The first seq of the model's last answer, 0 without one; all events in front of it were sent."""
    answered = (unit.items[0].event for unit in reversed(context.units))
    return next((event.seq for event in answered if event.type in ASSISTANT_SIDE), 0)


def rewriting(context: Context, state: Frontier, cache: CacheProfile, outside: int = 0) -> Mapping[int, int]:
    """For each item that was sent, by seq: the tokens that the cache must rewrite if the item changes.

    Automatic caches still hold everything in front of the item. Caches with markers hold an entry at the end of each
    request; up to the last request that was written as a whole, only the entry of the prefix is known to exist.
    """
    end = sent_to(context)
    whole_to = _written_whole(context, state, cache)
    found: dict[int, int] = {}
    behind, items = cache.step_tokens - 1, sum(item.tokens for item in context.items if item.event.seq < end)
    for unit in reversed(context.units):
        members = [item for item in unit.all_items if item.event.seq < end]
        behind += sum(item.tokens for item in members)
        since = behind
        known = unit.items[0].event.seq > whole_to and _within_reach(unit, cache)
        for item in members:
            if cache.lookback_blocks is not None:
                since = behind if known else items
            front = outside + context.tokens - since
            found[item.event.seq] = since if front >= cache.minimum_tokens else outside + context.tokens
            if cache.lookback_blocks is None:
                since -= item.tokens
    return found


def _within_reach(unit: Unit, cache: CacheProfile) -> bool:
    """Whether a marker anywhere in a round is within the cache's lookback of the marker in front of the round."""
    counted = sum(not _is_call(item) for item in unit.all_items)
    return cache.lookback_blocks is None or counted < cache.lookback_blocks - 1


def _is_call(item: Item) -> bool:
    return item.event.call_id is not None and item.event.call_seq is None


def _written_whole(context: Context, state: Frontier, cache: CacheProfile) -> int:
    """The last seq of the last request that was written as a whole: to a cold cache, or as the first of an epoch."""
    answers = [u.items[0].event for u in context.units if u.items[0].event.type in ASSISTANT_SIDE]
    cold = (new.seq - 1 for old, new in pairwise(answers) if new.at - old.at >= cache.ttl_seconds)
    return max(state.began, state.earned_to, *cold, 0)


def earned(context: Context, state: Frontier, cache: CacheProfile) -> float:
    """What the state's evictions have earned in all calls so far, in input tokens."""
    seqs = rounds(context, state.earned_to)
    calls = max(0, len(seqs) - bisect_right(seqs, state.earned_to) - 1)
    if not state.saved:
        return state.earned
    rounded = (cache.write_price - cache.read_price) * (cache.step_tokens - 1)
    return state.earned + calls * (cache.read_price * state.saved - rounded)


def spent(context: Context, state: Frontier, cache: CacheProfile, outside: int = 0) -> float:
    """The least that sending everything would have cost so far: all of it written once and read at each call since."""
    shown, read = 0, 0
    for unit in context.units:
        if unit.items[0].event.type in ASSISTANT_SIDE:
            read += shown
        shown += sum(item.tokens for item in unit.all_items)
    fixed = outside + context.tokens - shown
    calls = len(rounds(context))
    return cache.write_price * (fixed + shown + state.saved) + cache.read_price * (read + fixed * calls)


def credited(
    context: Context, before: Frontier, after: Frontier, cache: CacheProfile, head: int, *, cold: bool, outside: int = 0
) -> Frontier:
    """`after` with its earnings updated for the call at `head`, the first to send it."""
    if cold:
        now = cache.write_price * after.saved
    else:
        changed, costs = first_changed(before, after), rewriting(context, after, cache, outside)
        anew = max((tokens for seq, tokens in costs.items() if seq >= changed), default=0)
        now = cache.read_price * after.saved - (cache.write_price - cache.read_price) * anew
    return replace(after, earned=floor(earned(context, before, cache) + now), earned_to=head)
