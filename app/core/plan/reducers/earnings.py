"""What evictions have earned so far against sending everything, and what the next one would have to write anew.

Both are in input tokens at their full price, both rather too low and too high than the other way round: a call is taken
to have read what was evicted at the price of a read, although a cold cache would have written it, and an entry of the
cache that is not known to be there is taken to be gone.
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


def sent_to(context: Context) -> int:
    """The seq of the model's last answer: what stands in front of it was sent, 0 without one."""
    answered = (unit.items[0].event for unit in reversed(context.units))
    return next((event.seq for event in answered if event.type in ASSISTANT_SIDE), 0)


def rewriting(context: Context, state: Frontier, cache: CacheProfile, outside: int = 0) -> Mapping[int, int]:
    """For each item that was sent, by its seq: how much of what was sent is written anew when it changes.

    Automatic caches find whatever stands in front of it. Where writes happen at markers only, something was written
    behind each request; in front of the last one that was written as a whole, nothing is known to be but the prefix.
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
    """Whether a marker at any place of a round finds the one in front of it."""
    counted = sum(not _joins(item) for item in unit.all_items)
    return cache.lookback_blocks is None or counted < cache.lookback_blocks - 1


def _joins(item: Item) -> bool:
    return item.event.call_id is not None and item.event.call_seq is None


def _written_whole(context: Context, state: Frontier, cache: CacheProfile) -> int:
    """The last seq of the last request that was not written piece by piece: a cold cache's, or an epoch's."""
    answers = [u.items[0].event for u in context.units if u.items[0].event.type in ASSISTANT_SIDE]
    cold = (new.seq - 1 for old, new in pairwise(answers) if new.at - old.at >= cache.ttl_seconds)
    return max(state.began, state.earned_to, *cold, 0)


def earned(context: Context, state: Frontier, cache: CacheProfile) -> float:
    """What the state's evictions have earned in the calls up to the last one."""
    seqs = rounds(context, state.earned_to)
    calls = max(0, len(seqs) - bisect_right(seqs, state.earned_to) - 1)
    if not state.saved:
        return state.earned
    rounded = (cache.write_price - cache.read_price) * (cache.step_tokens - 1)
    return state.earned + calls * (cache.read_price * state.saved - rounded)


def spent(context: Context, state: Frontier, cache: CacheProfile, outside: int = 0) -> float:
    """What sending everything would have cost so far, at least: all of it written once, and read at each call since."""
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
    """`after`, which the call at `head` is the first to send, with what is earned with that call."""
    if cold:
        now = cache.write_price * after.saved
    else:
        changed, costs = first_changed(before, after), rewriting(context, after, cache, outside)
        anew = max((tokens for seq, tokens in costs.items() if seq >= changed), default=0)
        now = cache.read_price * after.saved - (cache.write_price - cache.read_price) * anew
    return replace(after, earned=floor(earned(context, before, cache) + now), earned_to=head)
