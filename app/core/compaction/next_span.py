"""The choice of the next span to summarize: whole units, the oldest first, never the part that must stay verbatim."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, takewhile
from typing import Final, NamedTuple

from app.core.log.event import Event
from app.core.log.events import EventType
from app.core.memory.cover import COVER_SHARE
from app.core.plan.state.context import Context, Unit
from app.core.plan.state.cuts import KEEP_TOKENS_MAX, default_cut, find_cut, kept_tokens, newest_part, turn_starts
from app.core.plan.state.drops import EXPIRY
from app.core.plan.state.frontier import Frontier
from app.core.plan.state.items import Item
from app.core.policy.policy import Policy
from app.core.tokens.budget import ROOM_SHARE, ROUND_SHARE, SLACK, Budget, auto_reserve, summary_tokens

CHUNK_SHARE: Final = 0.25
"""The maximum share of the target that one summary covers, so that small windows are summarized in steps too."""
SUMMARY_SHARE: Final = 0.05
"""The maximum share of the target that one of many summaries takes."""
MERGED_SHARE: Final = 0.7
"""The share of its sources' tokens that a merged summary may take. Measured (`make bench NAME=quality`): half of it and
a tenth more keep fewer of the values needed later."""
MERGED_MOST_SHARE: Final = 0.2
"""The maximum share of the target that a merged summary takes."""
CUMULATIVE_SHARE: Final = 0.25
"""The maximum share of the target that a single cumulative summary (`summarize.view` is `latest`) takes."""
LATEST_TARGETS: Final = 8
"""The events that a single cumulative summary takes in at a time, in multiples of the target."""
KEPT_LEAST_SHARE: Final = 0.2
"""The share of a policy's newest part that is kept even if no room for a summary is left."""
SUMMARY_TOKENS_MIN: Final = 150
SPAN_TOKENS_MIN: Final = 60
"""The size below which a span cannot be summarized in fewer tokens."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a compaction, in tokens.

    `least` and `chunk` are the minimum and the usual size of a span, `summary` the maximum size of its summary.
    """

    least: int
    chunk: int
    summary: int


def sizes(policy: Policy, budget: Budget, replaced: int = 0, prefix: int = 0) -> Sizes:
    """Return the sizes of compaction under a policy, for a budget.

    If the policy sets a reserve, a summary takes at most four fifths of it; a single cumulative summary
    (`summarize.view` is `latest`) may take that much even beyond its share, as long as the newest part still fits as
    well. `replaced` are the tokens of the summaries that the next one replaces, `prefix` those of the prefix.
    """
    rules, target, reserve = policy.summarize, budget.target, policy.trigger.reserve
    share = rules.max_ratio or (CUMULATIVE_SHARE if rules.view == "latest" else SUMMARY_SHARE)
    summary_max = min(rules.max_tokens, int(target * share))
    kept = kept_tokens(budget, policy.cut, prefix)
    if reserve is not None:
        left = auto_reserve(budget.window) if isinstance(reserve, str) else reserve
        if rules.view == "latest" and rules.max_ratio is None:
            summary_max = min(rules.max_tokens, max(summary_max, target - (target // 2 if kept is None else kept)))
        summary_max = min(summary_max, budget.own(summary_tokens(left)))
    summary = max(SUMMARY_TOKENS_MIN, summary_max)
    if rules.view == "latest":
        freed = int(budget.trigger * ROOM_SHARE)
        least = max(summary, freed)
        if kept is not None:  # the newest part may leave less room than that below the trigger
            least = max(min(least, _room(budget, replaced + prefix) - kept), summary - replaced, freed)
        return Sizes(least, LATEST_TARGETS * target, summary)
    if rules.chunk_events is not None:
        return Sizes(2 * summary, target, summary)
    chunk = max(2 * summary, min(rules.chunk_tokens, int(target * CHUNK_SHARE)))
    return Sizes(chunk, chunk, summary)


def _room(budget: Budget, fixed: int) -> int:
    """Return the tokens below the trigger that `fixed` tokens and one more call (ROUND_SHARE) leave."""
    return int(budget.trigger * (1 - ROUND_SHARE)) - fixed


def merged_sizes(policy: Policy, budget: Budget, sources: Sequence[int]) -> Sizes:
    """Return the sizes for a merged summary; `sources` are the tokens of the summaries that it replaces.

    It gets a share of its sources' tokens so that old content does not fade: if it were no larger than each of them,
    the text about an event would be halved at every depth.
    """
    size = sizes(policy, budget)
    if policy.summarize.view != "all" or policy.summarize.max_ratio is not None:
        return size
    summary_max = min(int(sum(sources) * MERGED_SHARE), int(budget.target * MERGED_MOST_SHARE))
    return replace(size, summary=max(SUMMARY_TOKENS_MIN, summary_max))


class Readiness(NamedTuple):
    """An approximation of `sizes` for any target: the newest part, and the minimum that a summary covers.

    Each is a share of the target, up to a number of tokens.
    """

    keep: float
    keep_tokens: float
    least: float
    least_tokens: float


def readiness(policy: Policy) -> Readiness:
    """Return the approximate sizes of compaction under a policy, for any target."""
    rules = policy.summarize
    keep = 0.0 if policy.cut.sizes else rules.keep_ratio
    if rules.view == "latest":
        return Readiness(keep, KEEP_TOKENS_MAX, ROOM_SHARE, math.inf)
    if rules.chunk_events is not None:
        return Readiness(keep, KEEP_TOKENS_MAX, CHUNK_SHARE, 2.0 * rules.max_tokens)
    return Readiness(keep, KEEP_TOKENS_MAX, CHUNK_SHARE, float(rules.chunk_tokens))


@dataclass(frozen=True, slots=True)
class VerbatimStart:
    """The first event that stays verbatim; `split_turn` is the turn that it cuts through, None if it begins one."""

    seq: int
    split_turn: int | None = None


def verbatim_start(context: Context, budget: Budget, policy: Policy, replaced: int = 0) -> VerbatimStart | None:
    """Return the start of the newest part, which is never summarized; None if the context holds only that part.

    A single cumulative summary (`summarize.view` is `latest`), which takes `replaced` tokens so far, needs a part that
    leaves room below the trigger for the minimum that the next summary covers and for one more call. If the policy kept
    more, the trigger would be passed before a summary is due. If the budget is tightened (`fallback_target`), the part
    must leave room for the summaries. If the part that the policy keeps does not fit at all, such as a long turn that
    it never splits, less is kept: events that the last resort would drop are better summarized.
    """
    prefix = sum(event.tokens for event in context.prefix)
    kept = kept_tokens(budget, policy.cut, prefix)
    keep_max = _keep_max(policy, budget, kept, replaced, prefix)
    point = find_cut(context, budget, newest_part(policy, budget), keep_max)
    items = context.items
    newest_tokens = sum(item.tokens for item in items[0 if point is None else point.index :])
    summary = sizes(policy, budget, replaced, prefix).summary
    if newest_tokens > (_room(budget, summary + prefix) if kept is None else budget.target - replaced - prefix):
        limit = keep_max if budget.fallback_target else None
        point = find_cut(context, budget, default_cut(policy, budget), limit) or point
    return None if point is None else VerbatimStart(items[point.index].event.seq, point.split_turn)


def _keep_max(policy: Policy, budget: Budget, kept: int | None, replaced: int, prefix: int) -> int | None:
    """Return the most tokens that the newest part may take, None if not limited; the policy would keep `kept`."""
    if budget.fallback_target:
        return max(1, int(budget.target * (1 - COVER_SHARE - SLACK)) - prefix)
    if kept is None or policy.summarize.view != "latest":
        return None
    least = sizes(policy, budget, replaced, prefix).least
    return max(_room(budget, replaced + prefix) - least, int(kept * KEPT_LEAST_SHARE))


def least_growth(
    context: Context, stop: VerbatimStart, policy: Policy, budget: Budget, size: Sizes, replaced: int = 0
) -> int:
    """Return the tokens by which the log grows at least before a span is due; 0 if that is unknown.

    `context` holds the log after the last summary, in which no span is due, and `stop` is its verbatim start.
    """
    prefix, cut = sum(event.tokens for event in context.prefix), newest_part(policy, budget)
    keep = kept_tokens(budget, cut, prefix)
    if keep is None or cut.lean == "forward" or cut.split_turn != "prefix" or policy.summarize.chunk_events is not None:
        return 0
    kept = kept_tokens(budget, policy.cut, prefix)
    keep = min(keep, _keep_max(policy, budget, kept, replaced, prefix) or keep)
    items, units = context.items, context.units
    behind = list(accumulate((item.tokens for item in reversed(items)), initial=0))[::-1]
    places = {item.event.seq: index for index, item in enumerate(items)}
    starts = [*(places[unit.items[0].event.seq] for unit in units[1:]), len(items)]
    before = accumulate(sum(item.event.tokens for item in unit.all_items) for unit in units)
    growths: list[int] = []
    may_grow = False
    for number, (unit, have, at) in enumerate(zip(units, before, starts, strict=True), start=1):
        # The newest part begins after this unit when enough tokens follow; a span up to there needs enough before it.
        may_grow = may_grow or bool(unit.open_calls) or number == len(units)
        if have >= size.least or may_grow:
            growths.append(max(0, size.least - have) + max(0, keep - behind[at]))
    growth = min(growths, default=0)
    if kept is None:
        return growth
    newest_tokens = sum(item.tokens for item in items if item.event.seq >= stop.seq)
    return max(0, min(growth, budget.target - replaced - prefix - newest_tokens))


@dataclass(frozen=True, slots=True)
class Span:
    """The events from_seq..to_seq of one summary, as far as a model may see them.

    `split_turn` is the turn that the span's end cuts through. `turn_start_events` are its events, from the user's
    message on, if that turn is summarized separately; all others are in `events`.
    """

    from_seq: int
    to_seq: int
    events: tuple[Event, ...]
    turn_start_events: tuple[Event, ...] = ()
    split_turn: int | None = None

    @property
    def all_events(self) -> tuple[Event, ...]:
        """All events in the log's order."""
        return self.events + self.turn_start_events

    @property
    def tokens(self) -> int:
        """The tokens that the events take verbatim."""
        return sum(event.tokens for event in self.all_events)


def next_span(
    context: Context,
    covered_to: int,
    stop: VerbatimStart,
    policy: Policy,
    size: Sizes,
    *,
    requested: bool,
    covered_turn: int | None = None,
) -> Span | None:
    """Return the oldest span after `covered_to` that is ready to be summarized; None while it is too small.

    `context` holds the log from there on, and the span ends before `stop`. If the context ends earlier, its last unit
    may be incomplete and is left for later. `requested`: a compaction was requested, so a smaller span will do.
    `covered_turn` is the turn that `covered_to` cuts through: its beginning has been summarized already.
    """
    rules, units, stop_seq = policy.summarize, context.units, stop.seq
    if units and context.items[-1].event.seq < stop_seq - 1:
        stop_seq = units[-1].items[0].event.seq
    tokens, events, best = 0, 0, (0, 0, 0)
    before_stop = takewhile(lambda unit: max(item.event.seq for item in unit.all_items) < stop_seq, units)
    for number, unit in enumerate(before_stop, start=1):
        tokens += sum(item.event.tokens for item in unit.all_items)
        events += len(unit.all_items)
        if _ends_before_next(units, number):
            best = (number, tokens, events)
            is_full = tokens >= size.chunk if rules.chunk_events is None else events >= rules.chunk_events
            if is_full:
                break
    count, tokens, events = best
    enough = tokens >= size.least or (rules.chunk_events is not None and events >= rules.chunk_events)
    if tokens < SPAN_TOKENS_MIN or not (enough or requested):
        return None
    taken = units[:count]
    items = sorted((item.event for unit in taken for item in unit.all_items), key=lambda event: event.seq)
    following = units[count].items[0].event if count < len(units) else None
    to_seq = max(items[-1].seq, (following.seq if following else stop_seq) - 1)
    split = stop.split_turn
    if following is not None and following.seq < stop.seq:
        split = following.turn if following.turn == items[-1].turn else None
    apart = rules.view == "latest" and policy.cut.split_turn == "prefix" and split != covered_turn
    turn_start_seq = _find_turn_start(context, split) if apart and split is not None else None
    before_turn_start = tuple(event for event in items if turn_start_seq is None or event.seq < turn_start_seq)
    return Span(covered_to + 1, to_seq, before_turn_start, tuple(items[len(before_turn_start) :]), split)


def _find_turn_start(context: Context, turn: int) -> int | None:
    """Return the seq of the user's message that begins a turn; None if the context does not hold one."""
    events = [context.items[index].event for index in turn_starts(context)]
    seqs = (event.seq for event in events if event.turn == turn and event.type is EventType.USER_MESSAGE)
    return max(seqs, default=None)


def nothing_to_summarize(context: Context, state: Frontier, budget: Budget, policy: Policy) -> str | None:
    """Return the reason why a requested compaction would find nothing to summarize; None if it would find something.

    `context` is as it is shown under `state`; folded events are summarized already.
    """
    if not policy.summarize.enabled:
        return "the policy writes no summaries (`summarize.enabled` is false)"
    if context.unread.to_seq > state.folded_to or any(drop.reducer != EXPIRY for drop in state.drops):
        return None
    items = tuple(Item(i.event, i.event.tokens) for i in context.items if i.event.seq > state.folded_to)
    rest = replace(context, items=items)
    stop = verbatim_start(rest, budget, policy)
    if stop is None:
        return "nothing to compact: all that is not summarized yet is in the newest part, which stays verbatim"
    if next_span(rest, state.folded_to, stop, policy, sizes(policy, budget), requested=True) is None:
        return f"nothing to compact: fewer than {SPAN_TOKENS_MIN} tokens are older than the newest part that is kept"
    return None


def _ends_before_next(units: Sequence[Unit], count: int) -> bool:
    """Return whether the last of the first `count` units ends before the next unit begins."""
    if count >= len(units):
        return True
    return max(item.event.seq for item in units[count - 1].all_items) < units[count].items[0].event.seq
