"""Retention: old results and the long arguments of old calls, which may be evicted by rule.

Without economics they are evicted when `policy.evict` says so or the budget demands it, oldest first.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Final

from app.core import dataclass
from app.core.log.event import Event
from app.core.plan.state.context import Context, Reduced
from app.core.plan.state.frontier import Frontier
from app.core.plan.state.items import Item
from app.core.plan.state.results import PairedResult
from app.core.plan.state.stubs import LISTING_TOKENS_MAX, STUB_TOKENS, Candidate, apply_stubs, stubs_for
from app.core.policy.groups import Retention, ToolRule
from app.core.tokens.budget import Budget

REDUCER: Final = "retention"
FORCED_TOKENS_MIN: Final = 200
"""The size below which results stay even if the budget forces out small ones. Measured: with 120 the bill is the same,
and contexts with free room lack short results, such as the errors of a check."""
SAVED_MIN: Final = 0.5
"""The minimum share of a result that its stub saves."""
SUPERSEDED: Final = "superseded"
"""The reason to evict a result that a newer one repeats."""
ARGUMENTS_TOKENS_MIN: Final = 150
"""The size below which arguments are not shortened; shortened ones take about half of this."""
EVICTABLE: Final = "evictable"
"""The name under which a context keeps its candidates (`Evictable`)."""


@dataclass(frozen=True, slots=True)
class Evictable:
    """The candidates of a context if nothing is forced, in log order, kept with it and extended as it grows.

    `results` are the seqs of the results that `keep_last` counts, by tool if it counts them separately.
    """

    retention: Retention
    results: Mapping[str, tuple[int, ...]]
    found: tuple[Candidate, ...]

    def extend(self, before: Context, after: Context) -> "Evictable":
        """Return the candidates of `after`, which has the items of `before` and newer ones."""
        retention, pairs = self.retention, after.paired_results
        added = pairs[len(before.paired_results) :]
        if not added and after.turn == before.turn:
            return self
        results, rules = _group(added, retention, self.results) if added else self.results, retention.rules()
        changed = {pair.result.event.seq for pair in added}
        if added and retention.superseded:
            changed.update(after.repeats.changed)
        counts = {rule.keep_last for rule in rules if rule.keep_last is not None}
        for name, seqs in results.items():
            known = len(self.results.get(name, ()))
            for count in counts:
                changed.update(seqs[max(0, known - count) : max(0, len(seqs) - count)])
        for age in {rule.age_turns for rule in rules if rule.age_turns is not None}:
            turn_of = attrgetter("result.event.turn")
            first, end = (bisect_right(pairs, turn - age, key=turn_of) for turn in (before.turn, after.turn))
            changed.update(pair.result.event.seq for pair in pairs[first:end])
        found = list(self.found)
        for seq in sorted(changed):
            pair = pairs[bisect_left(pairs, seq, key=attrgetter("result.event.seq"))]
            for item in filter(None, (pair.result, pair.call)):
                at = bisect_left(found, item.event.seq, key=_seq)
                if at < len(found) and _seq(found[at]) == item.event.seq:
                    del found[at]
            for candidate in _candidates_of(pair, after, retention, results):
                insort(found, candidate, key=_seq)
        return Evictable(retention, results, tuple(found))


def candidates(
    context: Context,
    retention: Retention,
    *,
    forced: bool = False,
    before: int | None = None,
    stays: Collection[int] = (),
) -> tuple[Candidate, ...]:
    """Return all candidates in log order; if `forced`, also small results, listings and events decided to be shown
    again.

    If `before` is given, only candidates before that seq; the seqs in `stays` stay whole. Never candidates: pinned
    events, results of `never_evict` tools and their calls, open calls, and events that are stubs already, except
    results that are only shortened.
    """
    known: Evictable | None = vars(context).get(EVICTABLE)
    if forced:
        known = _find(context, retention, forced=True)
    elif known is None or known.retention != retention:
        known = vars(context)[EVICTABLE] = _find(context, retention)
    if before is None and not stays:
        return known.found
    return tuple(c for c in known.found if (before is None or _seq(c) < before) and _seq(c) not in stays)


def _find(context: Context, retention: Retention, *, forced: bool = False) -> Evictable:
    """Find the candidates of a context among all its results."""
    results = _group(context.paired_results, retention)
    found = [
        c for pair in context.paired_results for c in _candidates_of(pair, context, retention, results, forced=forced)
    ]
    return Evictable(retention, results, tuple(sorted(found, key=_seq)))


def _group(
    pairs: Iterable[PairedResult], retention: Retention, known: Mapping[str, tuple[int, ...]] | None = None
) -> Mapping[str, tuple[int, ...]]:
    """Return the seqs of `known` results and of these, by tool if the rules count them separately."""
    added: dict[str, list[int]] = {}
    for pair in pairs:
        added.setdefault(_group_of(pair.result.event, retention), []).append(pair.result.event.seq)
    known = known or {}
    return {**known, **{name: (*known.get(name, ()), *seqs) for name, seqs in added.items()}}


def _group_of(event: Event, retention: Retention) -> str:
    return (event.tool or "") if retention.per_tool else ""


def _candidates_of(
    pair: PairedResult,
    context: Context,
    retention: Retention,
    results: Mapping[str, tuple[int, ...]],
    *,
    forced: bool = False,
) -> Iterator[Candidate]:
    """Yield a result and its call's long arguments if they are candidates, with what that saves."""
    result, event = pair.result, pair.result.event
    has_text = result.stub is None or result.stub.chars > 0
    long = None if pair.call is None or not _has_long_arguments(pair.call, retention) else pair.call
    if not (has_text or long) or (event.seq in context.shown_again and not forced):
        return
    rule = retention.rule(event.tool or "")
    if rule is None:
        return
    superseded_by = context.repeats.newer.get(event.seq) if retention.superseded else None
    group = results[_group_of(event, retention)]
    why = _reason(event, rule, group, context.turn, superseded_by, per_tool=retention.per_tool)
    if why is None:
        return
    min_tokens = min(rule.min_tokens or 0, FORCED_TOKENS_MIN) if forced else rule.min_tokens or 0
    saves = int(result.tokens * (1 - retention.identifiers)) - STUB_TOKENS
    pays = has_text and saves >= SAVED_MIN * result.tokens
    if pays and _is_evictable(result, min_tokens, why[0], retention, forced=forced):
        yield Candidate(result, *why, saves)
    if long is not None and long.tokens > ARGUMENTS_TOKENS_MIN // 2:
        yield Candidate(long, f"arguments_{why[0]}", why[1], long.tokens - ARGUMENTS_TOKENS_MIN // 2)


def _reason(
    event: Event, rule: ToolRule, results: Sequence[int], turn: int, superseded_by: int | None, *, per_tool: bool
) -> tuple[str, int] | None:
    """Return the reason to evict a result, and the seq from which it holds; None if the result may not be evicted.

    `results` are the seqs of all that `keep_last` counts, in log order.
    """
    if rule.age_turns is not None and turn - event.turn >= rule.age_turns:
        return f"at_least_{rule.age_turns}_turns_old", event.seq
    if rule.keep_last is not None and (after := bisect_left(results, event.seq) + rule.keep_last) < len(results):
        return f"not_among_last_{rule.keep_last}{'_of_tool' if per_tool else ''}", results[after]
    return None if superseded_by is None else (SUPERSEDED, superseded_by)


def _seq(candidate: Candidate) -> int:
    return candidate.item.event.seq


def _is_evictable(item: Item, min_tokens: int, reason: str, retention: Retention, *, forced: bool) -> bool:
    event = item.event
    if event.pinned:
        return False
    if reason == SUPERSEDED:
        return item.tokens > 2 * STUB_TOKENS
    if event.tokens < min_tokens:
        return False
    return forced or retention.dense >= 1 or event.tokens >= LISTING_TOKENS_MAX or event.density <= retention.dense


def _has_long_arguments(call: Item, retention: Retention) -> bool:
    if call.tokens < ARGUMENTS_TOKENS_MIN or call.stub is not None or not retention.arguments:
        return False
    return not call.event.pinned and call.event.body is not None


@dataclass(frozen=True, slots=True)
class RetentionReducer:
    """Stubs what the rules allow, oldest first, until the context is about within `budget.goal`.

    If `whole`, stubs everything that they allow. Does nothing if that would save less than the share `least` of the
    context. Events from `keep_from` on stay.
    """

    retention: Retention
    least: float = 0.0
    whole: bool = False
    keep_from: int | None = None

    def reduce(self, context: Context, budget: Budget, state: Frontier) -> Reduced:
        """Stub results and arguments; drop nothing."""
        over = context.tokens - (0 if self.whole else budget.goal)
        going: list[Candidate] = []
        for candidate in candidates(context, self.retention, before=self.keep_from):
            if over <= 0:
                break
            going.append(candidate)
            over -= candidate.saves
        if sum(candidate.saves for candidate in going) < self.least * context.tokens:
            return Reduced(context, state)
        return apply_stubs(context, state, stubs_for(context, going, self.retention.identifiers, REDUCER))
