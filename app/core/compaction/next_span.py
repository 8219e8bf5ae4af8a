"""Which part of the log is to be summarized next: whole units, the oldest first, never what is to stay verbatim."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from app.core.log.event import Event
from app.core.plan.context.context import Context, Unit
from app.core.plan.reducers.cut import find, keep_tokens
from app.core.policy.evictions import Cut
from app.core.policy.policy import Policy
from app.core.policy.threshold import auto_reserve, summary_tokens
from app.core.tokens.budget import ROOM_SHARE, Budget

CHUNK_SHARE: Final = 0.25
"""Of the target: a summary is of no more than this, so that small windows are prepared in steps as well."""
SUMMARY_SHARE: Final = 0.05
"""Of the target: what one of many summaries takes at most."""
MERGED_SHARE: Final = 0.7
"""Of what several summaries take: what the one that they become may take. `make bench-quality`: at half of it or at a
tenth more, fewer of the values that are needed later are shown."""
MERGED_MOST_SHARE: Final = 0.2
"""Of the target: what one summary that several became takes at most."""
KEEP_TOKENS_MAX: Final = 16_000
"""More than this does not stay unsummarized in a large window: a smaller view may come to ask, and what has been
summarized is shown verbatim as long as there is room."""
LATEST_SHARE: Final = 0.25
"""Of the target: what the one that stands for all takes at most."""
LATEST_TARGETS: Final = 8
"""How many targets one summary that stands for all takes in at a time."""
ROUND_SHARE: Final = 0.03
"""Of the trigger: about what one call adds."""
KEPT_LEAST_SHARE: Final = 0.2
"""Of what a policy keeps: more does not yield. Where even that leaves no room, nothing is to be won."""
SUMMARY_TOKENS_MIN: Final = 150
SPAN_TOKENS_MIN: Final = 60
"""What takes less than this cannot be said shorter."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """In tokens: how much of the newest stays, what one summary is of, at least and about, and may take itself."""

    keep: int
    least: int
    chunk: int
    summary: int


def sizes(policy: Policy, budget: Budget, before: int = 0, prefix: int = 0) -> Sizes:
    """The sizes for a budget.

    Where a context is to leave a reserve, a summary takes at most four fifths of that; one that stands for all takes as
    much, also where that is more than its share, as long as what stays has its place beside it. `before` is what the
    summaries take that the next one stands for as well, `prefix` what stands in front of them.
    """
    rules, target, reserve = policy.summarize, budget.target, policy.trigger.reserve
    share = rules.max_ratio or (LATEST_SHARE if rules.view == "latest" else SUMMARY_SHARE)
    most = min(rules.max_tokens, int(target * share))
    kept = keep_tokens(budget, policy.cut, prefix)
    if reserve is not None:
        left = auto_reserve(budget.window) if isinstance(reserve, str) else reserve
        if rules.view == "latest" and rules.max_ratio is None:
            most = min(rules.max_tokens, max(most, target - (target // 2 if kept is None else kept)))
        most = min(most, budget.own(summary_tokens(left)))
    summary = max(SUMMARY_TOKENS_MIN, most)
    keep = min(int(target * rules.keep_ratio), KEEP_TOKENS_MAX) if _keeps_tokens(policy.cut) is None else 0
    if rules.view == "latest":
        least = max(summary, int(budget.trigger * ROOM_SHARE))
        if kept is not None:  # by which there may be less room than that until the trigger is passed
            least = max(min(least, _room(budget, before + prefix) - kept), _win(budget, summary - before))
        return Sizes(keep, least, LATEST_TARGETS * target, summary)
    if rules.chunk_events is not None:
        return Sizes(keep, 2 * summary, target, summary)
    chunk = max(2 * summary, min(rules.chunk_tokens, int(target * CHUNK_SHARE)))
    return Sizes(keep, chunk, chunk, summary)


def _win(budget: Budget, growth: int) -> int:
    """The least that a summary is of which takes `growth` more than those that it takes the place of."""
    return max(growth, int(budget.trigger * ROOM_SHARE))


def _room(budget: Budget, fixed: int) -> int:
    """What is left beside `fixed`, one call before the trigger is passed."""
    return int(budget.trigger * (1 - ROUND_SHARE)) - fixed


def merged_sizes(policy: Policy, budget: Budget, sources: Sequence[int]) -> Sizes:
    """The sizes for a summary that several become, which take so many tokens each.

    Its share of what they took is what keeps the oldest from fading: were it no larger than each of them, what is said
    of an event would be halved at every depth.
    """
    size = sizes(policy, budget)
    if policy.summarize.view != "all" or policy.summarize.max_ratio is not None:
        return size
    most = min(int(sum(sources) * MERGED_SHARE), int(budget.target * MERGED_MOST_SHARE))
    return replace(size, summary=max(SUMMARY_TOKENS_MIN, most))


@dataclass(frozen=True, slots=True)
class Readiness:
    """About what `sizes` says, for any target: how much stays, and of how much at least a summary is made, each as a
    share of the target and in tokens at most."""

    keep: float
    keep_tokens: float
    least: float
    least_tokens: float


def readiness(policy: Policy) -> Readiness:
    """The sizes of a policy for any target."""
    rules = policy.summarize
    keep = rules.keep_ratio if _keeps_tokens(policy.cut) is None else 0.0
    if rules.view == "latest":
        return Readiness(keep, KEEP_TOKENS_MAX, ROOM_SHARE, math.inf)
    if rules.chunk_events is not None:
        return Readiness(keep, KEEP_TOKENS_MAX, CHUNK_SHARE, 2.0 * rules.max_tokens)
    return Readiness(keep, KEEP_TOKENS_MAX, CHUNK_SHARE, float(rules.chunk_tokens))


def _keeps_tokens(cut: Cut) -> object:
    """The size of the newest part by a policy's cut, if it has one."""
    given = (cut.keep_tokens, cut.keep_ratio, cut.keep_messages, cut.keep_turns)
    return next((size for size in given if size is not None), None)


@dataclass(frozen=True, slots=True)
class Boundary:
    """What stays verbatim begins at `seq`. `turn` is the turn that it cuts through, whose first seq is `turn_seq`."""

    seq: int
    turn: int | None = None
    turn_seq: int = 0


def boundary(context: Context, budget: Budget, policy: Policy, before: int = 0) -> Boundary | None:
    """Where the newest part begins that is never summarized; None while there is no more than that.

    With one summary that stands for all before it, which takes `before` tokens so far, that part leaves room below the
    trigger for what the next one is at least of, and for the call by which there is so much: where a policy would keep
    more than that, there would be no summary yet when its trigger is passed.
    """
    cut, most = policy.cut, None
    prefix = sum(event.tokens for event in context.prefix)
    kept = keep_tokens(budget, cut, prefix)
    if _keeps_tokens(cut) is None:
        cut = Cut(keep_tokens=max(1, budget.shown(sizes(policy, budget).keep)), split_turn="prefix")
    elif kept is not None and policy.summarize.view == "latest":
        least = sizes(policy, budget, before, prefix).least
        most = max(_room(budget, before + prefix) - least, int(kept * KEPT_LEAST_SHARE))
    point = find(context, budget, cut, most)
    if point is None:
        return None
    items = context.items
    if point.split_turn is None:
        return Boundary(items[point.index].event.seq)
    return Boundary(items[point.index].event.seq, point.split_turn, items[point.turn_start].event.seq)


@dataclass(frozen=True, slots=True)
class Span:
    """Events from_seq..to_seq that become one summary. `events` are those a model may see, `late` the ones of the turn
    that the span's end cuts through (they come last), where that turn is summarized by itself."""

    from_seq: int
    to_seq: int
    events: tuple[Event, ...]
    late: tuple[Event, ...] = ()
    split_turn: int | None = None

    @property
    def all_events(self) -> tuple[Event, ...]:
        """All of them in the log's order."""
        return self.events + self.late

    @property
    def tokens(self) -> int:
        """What they take verbatim."""
        return sum(event.tokens for event in self.all_events)


def next_span(
    context: Context, covered_to: int, stop: Boundary, policy: Policy, size: Sizes, *, asked: bool
) -> Span | None:
    """The oldest part behind `covered_to` that is ready to be summarized, None while it is too small.

    `context` holds the log from there on, `stop` is where it must end; where it ends before that, what belongs to its
    last unit may be missing, so that one is left for later. `asked`: whatever there is will do.
    """
    rules, units = policy.summarize, context.units
    if units and context.items[-1].event.seq < stop.seq - 1:
        stop = replace(stop, seq=units[-1].items[0].event.seq)
    count, tokens, events = 0, 0, 0
    best = (0, 0, 0)
    for number, unit in enumerate(units[: _ends(units, stop.seq)], start=1):
        tokens += sum(item.event.tokens for item in unit.all_items)
        events += len(unit.all_items)
        if _closed(units, number):
            best = (number, tokens, events)
            if events >= rules.chunk_events if rules.chunk_events is not None else tokens >= size.chunk:
                break
    count, tokens, events = best
    enough = tokens >= size.least or (rules.chunk_events is not None and events >= rules.chunk_events)
    if tokens < SPAN_TOKENS_MIN or not (enough or asked):
        return None
    taken = units[:count]
    items = sorted((item.event for unit in taken for item in unit.all_items), key=lambda event: event.seq)
    following = units[count].items[0].event.seq if count < len(units) else None
    to_seq = max(items[-1].seq, (following or stop.seq) - 1)
    split = stop.turn is not None and to_seq >= stop.seq - 1 and policy.cut.split_turn == "prefix"
    if not split:
        return Span(covered_to + 1, to_seq, tuple(items))
    apart = rules.view == "latest" and stop.turn_seq > covered_to
    early = tuple(event for event in items if event.seq < stop.turn_seq or not apart)
    return Span(covered_to + 1, to_seq, early, tuple(items[len(early) :]), stop.turn)


def _ends(units: Sequence[Unit], stop_seq: int) -> int:
    """How many of the units stand wholly before the stop."""
    for index, unit in enumerate(units):
        if max(item.event.seq for item in unit.all_items) >= stop_seq:
            return index
    return len(units)


def _closed(units: Sequence[Unit], count: int) -> bool:
    """Whether nothing of the first `count` units, the last of them at most, stands behind the next one's beginning."""
    if count >= len(units):
        return True
    return max(item.event.seq for item in units[count - 1].all_items) < units[count].items[0].event.seq
