"""Retention: old results and the long arguments of old calls, which may be evicted by rule.

Without economics they are evicted if the budget demands it, oldest first.
"""

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from app.core.log.event import Event
from app.core.plan.state.context import Context, Reduced
from app.core.plan.state.frontier import Frontier
from app.core.plan.state.items import Item
from app.core.plan.state.stubs import LISTING_TOKENS_MAX, STUB_TOKENS, Candidate, apply_stubs, stubs_for
from app.core.policy.evictions import Retention, ToolRule
from app.core.tokens.budget import Budget

REDUCER: Final = "retention"
FORCED_TOKENS_MIN: Final = 120
"""The size below which results stay even if the budget forces out small ones: a stub takes half of it."""
SUPERSEDED: Final = "superseded"
"""The reason to evict a result that a newer one repeats."""
ARGUMENTS_TOKENS_MIN: Final = 150
"""The size below which arguments are not shortened; shortened ones take about half of this."""


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
    newer = context.repeats.newer if retention.superseded else {}
    later_results: defaultdict[str, list[int]] = defaultdict(list)
    rules: dict[str, ToolRule | None] = {}
    found: list[Candidate] = []
    for answer in reversed(context.answers):
        result, call = answer.result, answer.call
        event = result.event
        tool = event.tool or ""
        if tool not in rules:
            rules[tool] = retention.rule(tool)
        rule = rules[tool]
        seqs = later_results[tool if retention.per_tool else ""]
        seqs.append(event.seq)
        has_text = result.stub is None or result.stub.chars > 0
        long = None if call is None or not _has_long_arguments(call, retention) else call
        if rule is None or not (has_text or long):
            continue
        if event.seq in context.shown_again and not forced:
            continue
        why = _reason(event, rule, seqs, context.turn, newer.get(event.seq), per_tool=retention.per_tool)
        if why is None:
            continue
        min_tokens = min(rule.min_tokens or 0, FORCED_TOKENS_MIN) if forced else rule.min_tokens or 0
        if has_text and _is_evictable(result, min_tokens, why[0], retention, forced=forced):
            found.append(Candidate(result, *why, int(result.tokens * (1 - retention.identifiers)) - STUB_TOKENS))
        if long is not None:
            found.append(Candidate(long, f"arguments_{why[0]}", why[1], long.tokens - ARGUMENTS_TOKENS_MIN // 2))
    found = [c for c in found if c.saves > 0 and (before is None or c.item.event.seq < before)]
    return tuple(sorted((c for c in found if c.item.event.seq not in stays), key=lambda c: c.item.event.seq))


def _reason(
    event: Event, rule: ToolRule, seqs: list[int], turn: int, superseded_by: int | None, *, per_tool: bool
) -> tuple[str, int] | None:
    """Return the reason to evict a result, and the seq from which it holds; None if the result may not be evicted.

    `seqs` are the results that `keep_last` counts, newest first, down to this one.
    """
    if rule.age_turns is not None and turn - event.turn >= rule.age_turns:
        return f"at_least_{rule.age_turns}_turns_old", event.seq
    if rule.keep_last is not None and len(seqs) > rule.keep_last:
        since = seqs[-1 - rule.keep_last]
        return f"not_among_last_{rule.keep_last}{'_of_tool' if per_tool else ''}", since
    return None if superseded_by is None else (SUPERSEDED, superseded_by)


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
