"""Earnings of evictions: the input tokens they save, less those they cost, by the prices of cache reads and writes."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, takewhile
from math import floor

from app.core.plan.state.context import Context, Reduced, Unit
from app.core.plan.state.frontier import Frontier, first_changed
from app.core.plan.state.items import Item
from app.core.tokens.budget import ROOM_SHARE, Budget
from app.core.tokens.models import CacheProfile


def stall_reason(before: Reduced, reduced: Reduced, budget: Budget) -> str | None:
    """Return the reason to refuse a reduction; None if it is accepted.

    It is accepted for a context above its target. Otherwise, one that leaves less than ROOM_SHARE of the trigger free
    would soon be repeated, so it must save that much, and as much as all earlier ones together. A reduction to within
    the trigger that folds more is accepted too: it cannot be repeated until there is another summary.
    """
    limit, room = budget.trigger, budget.trigger - reduced.context.tokens
    if before.context.tokens > budget.target or room >= ROOM_SHARE * limit:
        return None
    if room >= 0 and reduced.state.folded_to > before.state.folded_to:
        return None
    saved = before.context.tokens - reduced.context.tokens
    gone = sum(stub.saved for stub in before.state.stubs) + sum(drop.tokens for drop in before.state.drops)
    if saved >= max(gone, ROOM_SHARE * limit):
        return None
    save = budget.provider_tokens(saved)
    return f"the allowed evictions would save only {save} tokens, and {above_trigger(before, budget)}"


def above_trigger(reduced: Reduced, budget: Budget) -> str:
    """Return the part of a stall's reason that compares the context's size with its trigger."""
    size, most = budget.provider_tokens(reduced.context.tokens), budget.provider_tokens(budget.trigger)
    return f"the context's {size} tokens are above the trigger of {most}"


def last_unit_seq(context: Context) -> int:
    """Return the first seq of the model's last unit, 0 without one; all events before it were sent."""
    return context.rounds.last


def rewrite_cost(
    context: Context, state: Frontier, cache: CacheProfile, outside: int, end: int | None
) -> Callable[[Item], int]:
    """Return a function that returns the tokens to write to the cache again if an item changes.

    `end` is the seq at which the cached part of the context ends; None: where the last call ended. Only items before it
    have a cost.

    An automatic cache keeps everything before a changed item. A cache with markers keeps everything before the item's
    round, where an earlier request ended and left an entry, if a marker in the round reaches that entry. If not, or if
    one request wrote the round together with what is before it (`_last_whole_write`), only the entry of the prefix is
    known to exist; a prefix outside the context may not even have that, since the client may not have marked it.
    """
    rounds, total = context.rounds, outside + context.tokens
    end = last_unit_seq(context) if end is None else end
    whole_to = _last_whole_write(context, state, cache)
    before_units, last = _tokens_before_units(context, end)
    unsent = sum([item.tokens for item in takewhile(lambda item: item.event.seq >= end, reversed(context.items))])
    everything = total if outside and not context.prefix else sum(context.item_tokens) - unsent

    def tokens(item: Item) -> int:
        index = bisect_right(rounds.firsts, item.event.call_seq or item.event.seq) - 1
        unit, following = context.units[index], before_units[last] - before_units[index]
        if cache.lookback_blocks is None:
            following -= sum(
                before.tokens for before in takewhile(lambda one: one.event.seq != item.event.seq, unit.all_items)
            )
        elif rounds.firsts[index] <= whole_to or not _within_reach(unit, cache.lookback_blocks):
            following = everything
        following += cache.step_tokens - 1  # the provider caches whole steps
        return following if total - following >= cache.minimum_tokens else total

    return tokens


def _tokens_before_units(context: Context, end: int) -> tuple[Sequence[int], int]:
    """Return the tokens before each unit, and the position of `end` among them.

    The sums of `rounds` are used if no result arrived late after `end` and `end` begins a unit. Else they are made
    again, without items from `end` on.
    """
    rounds = context.rounds
    last = bisect_right(rounds.firsts, end) - 1
    if rounds.late < end and end in rounds.firsts[last : last + 1]:
        return rounds.tokens_before, last
    sent = (sum(item.tokens for item in unit.all_items if item.event.seq < end) for unit in context.units)
    return list(accumulate(sent, initial=0)), -1


def _within_reach(unit: Unit, lookback: int) -> bool:
    """Return whether a marker anywhere in a round is within the cache's lookback of the marker before the round."""
    calls = sum(item.event.call_id is not None and item.event.call_seq is None for item in unit.all_items)
    return len(unit.all_items) - calls < lookback - 1


def _last_whole_write(context: Context, state: Frontier, cache: CacheProfile) -> int:
    """Return the last seq of the last request written as a whole: to a cold cache, or as the first of an epoch."""
    cold = (seq - 1 for seconds, seq in reversed(context.rounds.pauses) if seconds >= cache.ttl_seconds)
    return max(state.began, state.earned_to, next(cold, 0))


def earnings_so_far(context: Context, state: Frontier, cache: CacheProfile) -> float:
    """Return the earnings of the state's evictions in all calls so far, in input tokens."""
    seqs = context.rounds.seqs
    calls = max(0, len(seqs) - bisect_right(seqs, state.earned_to) - 1)
    if not state.saved:
        return state.earned
    rounding_cost = (cache.write_price - cache.read_price) * (cache.step_tokens - 1)
    return state.earned + calls * (cache.read_price * state.saved - rounding_cost)


def baseline_cost(context: Context, state: Frontier, cache: CacheProfile, outside: int) -> float:
    """Return the minimum cost of sending everything so far: all of it written once and read at each later call."""
    rounds = context.rounds
    fixed = outside + context.tokens - rounds.tokens
    read = rounds.read_tokens + fixed * len(rounds.seqs)
    return cache.write_price * (fixed + rounds.tokens + state.saved) + cache.read_price * read


def with_credit(
    context: Context,
    before: Frontier,
    after: Frontier,
    cache: CacheProfile,
    head: int,
    *,
    cold: bool,
    outside: int = 0,
    end: int | None = None,
) -> Frontier:
    """Return `after` with its earnings up to the call at `head`, the first to send it; `end` as in `rewrite_cost`."""
    if cold:
        gain = cache.write_price * after.saved
    else:
        end = last_unit_seq(context) if end is None else end
        changed, costs = first_changed(before, after), rewrite_cost(context, after, cache, outside, end)
        rounds = context.rounds
        first = 0 if rounds.late >= changed else max(0, bisect_right(rounds.firsts, changed) - 1)
        sent = (item for unit in context.units[first:] for item in unit.all_items if changed <= item.event.seq < end)
        rewritten = max(map(costs, sent), default=0)
        gain = cache.read_price * after.saved - (cache.write_price - cache.read_price) * rewritten
    return replace(after, earned=floor(earnings_so_far(context, before, cache) + gain), earned_to=head)
