"""The reducers that left a context as it is, each with its reason.

Reducers are asked again about the context that a call shows, at the moment that it was planned for. A reducer that
evicted something for the call is not among them.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final, Literal

from app.core.log.event import lazy
from app.core.log.events import TOOL_USE, EventType
from app.core.plan.reducers import caps, economics, expiry, fold, last_resort, once, retention, ttl, window
from app.core.plan.reducers.economics import EconomicReducer, Moment, QueuePart, due, parts
from app.core.plan.reducers.once import OnceReducer, once_reducer
from app.core.plan.state.context import Context
from app.core.plan.state.frontier import Frontier
from app.core.plan.state.results import held_content
from app.core.plan.state.stubs import Candidate
from app.core.policy.policy import Policy
from app.core.tokens.budget import Budget
from app.core.tokens.models import CacheProfile
from app.wings.audit.call_blocks import Protections

Reason = Literal[
    "disabled",
    "not_asked",
    "not_due",
    "nothing_eligible",
    "protected",
    "below_minimum",
    "would_not_pay",
    "below_trigger",
    "within_limit",
    "reached_goal",
    "no_summary",
    "would_save_nothing",
    "stalled",
]
CALLS_MAX: Final = 10_000
"""Number of further calls at which counting stops: an eviction that needs as many is reported as not paying."""


@dataclass(frozen=True, slots=True)
class Declined:
    """A reducer that evicted nothing. `events` and `tokens` (the model's) are those that it left, None if unknown."""

    reducer: str
    reason: Reason
    detail: str
    events: int | None = None
    tokens: int | None = None


@dataclass(frozen=True)
class PlannedMoment:
    """A context as a call shows it, and the facts by which its reducers decided.

    `called`: an earlier call of the view may be cached. `forced`: a reduction was requested. `foldable`: summaries of
    events that are not folded exist. `evicted` are the reducers that evicted for this call, `stalled` is the reason for
    which evictions were refused, `pruning` the state of TTL pruning.
    """

    context: Context
    state: Frontier
    policy: Policy
    budget: Budget
    moment: Moment
    cache: CacheProfile
    called: bool = True
    outside: int = 0
    recall: bool = True
    forced: bool = False
    foldable: bool = False
    evicted: Collection[str] = ()
    stalled: str | None = None
    pruning: ttl.Status = ttl.DISABLED

    @lazy
    def once(self) -> OnceReducer:
        """The reducer of results that are shown once."""
        return once_reducer(self.policy, self.cache, self.outside, recall=self.recall)

    @lazy
    def economic(self) -> EconomicReducer:
        """The reducer of evictions that pay."""
        rules, called = self.policy.economics, self.called
        kind = self.policy.retention
        return EconomicReducer(kind, rules, self.cache, self.moment, self.outside, called=called, once=self.once)

    @lazy
    def protections(self) -> Protections:
        """The protections of the context's events."""
        economic = self.economic if self.policy.evict == "economic" else None
        return Protections(self.context, self.state, self.policy.retention, economic)

    @property
    def has_reached_goal(self) -> bool:
        """Whether the context is within its goal, apart from content that was shown again in the room left."""
        return self.context.tokens <= max(self.budget.goal, self.budget.refill)

    def size(self, tokens: int) -> str:
        """Return tokens of the estimator in words, as the model's."""
        return f"{self.budget.provider_tokens(tokens):,} tokens"


def declined(at: PlannedMoment) -> tuple[Declined, ...]:
    """Return the reducers that evicted nothing for a call, in the order in which they are asked."""
    asked = (_expiry, _ttl, _once, _economics, _retention, _caps, _window, _fold, _last_resort)
    found = (decline(at) for decline in asked)
    return tuple(one for one in found if one.reducer not in at.evicted)


def _expiry(at: PlannedMoment) -> Declined:
    shown = [item for item in at.context.perishable if item.shown]
    if not shown:
        return Declined(expiry.REDUCER, "nothing_eligible", "no event that is shown expires")
    tokens = at.budget.provider_tokens(sum(item.tokens for item in shown))
    detail = f"{_count(len(shown), 'event')} that expire are not due yet"
    return Declined(expiry.REDUCER, "not_due", detail, len(shown), tokens)


def _ttl(at: PlannedMoment) -> Declined:
    seconds = at.policy.ttl_pruning.ttl_seconds
    if not seconds:
        return Declined(ttl.REDUCER, "disabled", "the policy has no ttl_pruning.ttl_seconds")
    if at.pruning == "armed":
        return Declined(ttl.REDUCER, "not_due", "no earlier call of the view is known")
    if at.pruning == "fresh":
        return Declined(ttl.REDUCER, "not_due", f"the view's last call was less than {seconds} seconds earlier")
    return Declined(ttl.REDUCER, "nothing_eligible", "nothing that is shown is old and long enough to be pruned")


def _once(at: PlannedMoment) -> Declined:
    least, policy = at.policy.economics.once_tokens, at.policy
    if least is None or policy.evict != "economic":
        return Declined(once.REDUCER, "disabled", "the policy has no economics.once_tokens for economic evictions")
    if at.once.tokens is None:
        return Declined(once.REDUCER, "disabled", "the agent cannot recall events, or the provider caches nothing")
    detail = f"no result of at least {least:,} tokens was kept out of the cache by the call before"
    return Declined(once.REDUCER, "nothing_eligible", detail)


def _economics(at: PlannedMoment) -> Declined:
    name, policy, reducer = economics.REDUCER, at.policy, at.economic
    if policy.evict != "economic":
        return Declined(name, "disabled", f"the policy evicts by retention alone: evict is {policy.evict}")
    queue = retention.candidates(at.context, policy.retention)
    if not queue:
        return _nothing_eligible(at, name)
    if at.moment == "pressed":
        return _under_pressure(at, name, queue)
    waiting = reducer.queue(queue, at.context, at.state)
    if not waiting:
        detail = f"{_count(len(queue), 'event')} show the newest content of files, or were not sent before"
        return _left(at, name, "protected", detail, queue)
    saves = sum(one.saves for one in waiting)
    if at.moment == "cold" and not policy.economics.on_cold:
        return _left(at, name, "disabled", "the policy evicts nothing at a cold cache: economics.on_cold", waiting)
    if at.moment == "warm" and not at.called:
        return _left(at, name, "not_asked", "no earlier call of the view is cached yet", waiting)
    part = due(at.context, waiting, at.cache, policy.economics, at.state, at.outside, reducer.written_to(at.context))
    saves = sum(one.saves for one in part) if part and at.moment == "warm" else saves
    if saves < policy.economics.least_tokens:
        detail = f"would save {at.size(saves)}, fewer than economics.least_tokens: {policy.economics.least_tokens:,}"
        return _left(at, name, "below_minimum", detail, waiting)
    if at.outside + at.context.tokens - saves < at.cache.minimum_tokens:
        detail = f"would leave fewer than the {at.cache.minimum_tokens:,} tokens from which the provider caches"
        return _left(at, name, "below_minimum", detail, waiting)
    return _left(at, name, "would_not_pay", _price(at, waiting), waiting)


def _price(at: PlannedMoment, waiting: Sequence[Candidate]) -> str:
    """Return the figures of the part of a queue that pays first."""
    end = at.economic.written_to(at.context)
    found = list(parts(at.context, waiting, at.cache, at.state, at.outside, end))
    if not found:
        return "no call of the view has sent these events yet"
    calls, _, part = min((_calls_until(at, part), -part[1], part) for part in found)
    _, saves, rewritten, *_ = part
    words = f"would save {at.size(saves)} at each call and write {at.size(rewritten)} again"
    if calls == 0:
        share = f"{at.policy.economics.at_risk:.0%}"
        return f"{words}, which could raise the cost of the run by more than economics.at_risk: {share}"
    if calls >= CALLS_MAX:
        return f"{words}, which does not pay at the prices of the provider's cache"
    return f"{words}; it pays after about {_count(calls, 'more call')}"


def _calls_until(at: PlannedMoment, part: QueuePart) -> int:
    """Return the number of further calls after which carrying a part has cost as much as rewriting."""
    _, saves, _, carried, price, now = part
    missing, each = at.policy.economics.factor * price - carried, at.cache.read_price * saves
    if missing < 0 or now > 0:
        return 0
    return min(CALLS_MAX, max(1, ceil(missing / each))) if each > 0 else CALLS_MAX


def _retention(at: PlannedMoment) -> Declined:
    name, policy = retention.REDUCER, at.policy
    if policy.evict == "economic":
        return Declined(name, "disabled", "the policy evicts when it pays: its rules are applied by economics")
    if at.moment == "warm" and policy.evict == "on_cache_expiry":
        return Declined(name, "not_asked", "the provider still holds the prefix, which stubs would rewrite")
    if at.moment != "pressed" and policy.evict == "on_pressure":
        return Declined(name, "below_trigger", _within_threshold(at))
    queue = retention.candidates(at.context, policy.retention)
    if not queue:
        return _nothing_eligible(at, name)
    if at.moment == "pressed":
        return _under_pressure(at, name, queue)
    if at.moment == "cold" or not at.state.stubs:
        return _left(at, name, "would_save_nothing", "their stubs would take as many tokens", queue)
    least, saves = int((1 - policy.low_water) * at.context.tokens), sum(one.saves for one in queue)
    detail = f"would save {at.size(saves)}, fewer than the {at.size(least)} for which more stubs are made"
    return _left(at, name, "below_minimum", detail, queue)


def _under_pressure(at: PlannedMoment, name: str, queue: Sequence[Candidate]) -> Declined:
    """Return the reason of a reducer that left candidates although the budget demanded a reduction."""
    if at.stalled is not None:
        return _left(at, name, "stalled", at.stalled, queue)
    held = held_content(at.context, at.policy.retention.working_set, at.budget.goal)
    if name == economics.REDUCER and all(one.item.event.seq in held for one in queue):
        shown = "show the newest content of files, or a check that still fails"
        detail = f"{_count(len(queue), 'event')} {shown}, which stay while there is room"
        return _left(at, name, "protected", detail, queue)
    if at.has_reached_goal:
        return _left(at, name, "reached_goal", _within_goal(at), queue)
    return _left(at, name, "would_save_nothing", "their stubs would take as many tokens", queue)


def _caps(at: PlannedMoment) -> Declined:
    limits = [(kind, at.budget.caps[kind]) for kind in ("tool_results", "dialogue") if kind in at.budget.caps]
    if not limits:
        return Declined(caps.REDUCER, "disabled", "the policy caps neither tool results nor dialogue")
    results = sum(item.tokens for item in at.context.items if item.event.type is EventType.TOOL_RESULT)
    taken = {"tool_results": results, "dialogue": sum(at.context.item_tokens) - results}
    over = [kind for kind, cap in limits if taken[kind] > cap]
    detail = ", ".join(f"{kind} take {at.size(taken[kind])} of {at.size(cap)}" for kind, cap in limits)
    return Declined(caps.REDUCER, "protected" if over else "within_limit", detail)


def _window(at: PlannedMoment) -> Declined:
    rules = at.policy.dialogue_window
    limits = [f"{limit:,} {name}" for name, limit in (("turns", rules.turns), ("tokens", rules.tokens)) if limit]
    if not limits:
        return Declined(window.REDUCER, "disabled", "the policy has no dialogue_window")
    if at.moment == "warm" and at.policy.evict != "every_assembly":
        return Declined(window.REDUCER, "not_asked", "the provider still holds the prefix, which a cut would rewrite")
    return Declined(window.REDUCER, "within_limit", f"no turn outside the window of {' or '.join(limits)} may go")


def _fold(at: PlannedMoment) -> Declined:
    name, tokens, soft = fold.REDUCER, at.context.tokens, int(at.policy.soft_ratio * at.budget.trigger)
    if at.moment == "warm":
        return Declined(name, "below_trigger", _within_threshold(at))
    if at.moment == "cold" and tokens <= soft:
        detail = f"at a cold cache it folds above {at.size(soft)}: the context takes {at.size(tokens)}"
        return Declined(name, "below_trigger", detail)
    if not at.foldable:
        return Declined(name, "no_summary", "no summary of events that are shown was stored yet")
    if at.stalled is not None:
        return Declined(name, "stalled", at.stalled)
    if at.has_reached_goal and not at.forced:
        return Declined(name, "reached_goal", _within_goal(at))
    return Declined(name, "would_save_nothing", "the summaries would take as many tokens as the events that may go")


def _last_resort(at: PlannedMoment) -> Declined:
    size, target = at.size(at.context.tokens), at.size(at.budget.target)
    if at.context.tokens <= at.budget.target:
        return Declined(last_resort.REDUCER, "within_limit", f"the context's {size} are within the target of {target}")
    detail = f"nothing more may go, and the context's {size} are within the former target"
    return Declined(last_resort.REDUCER, "nothing_eligible", detail)


_WORDS: Final = {
    "pinned": "pinned",
    "open_call": "of an open call",
    "never_evict": "of tools that are never evicted",
    "shown_again": "shown again on request",
    "newest": "among the newest",
    "below_minimum": "too small",
    "listing": "listings",
    "arguments_stay": "arguments, which stay",
}


def _nothing_eligible(at: PlannedMoment, name: str) -> Declined:
    """Return the reason of a reducer without candidates: the protections of all calls and results that are whole."""
    whole = [item for item in at.context.items if item.event.type in TOOL_USE and item.stub is None]
    counts = Counter(found for item in whole if (found := at.protections.protection(item)) is not None)
    listed = ", ".join(f"{count} {_WORDS[found]}" for found, count in counts.most_common() if found in _WORDS)
    detail = f"no tool call or result may go: {listed}" if listed else "no tool call or result is shown whole"
    tokens = sum(item.tokens for item in whole)
    return Declined(name, "nothing_eligible", detail, len(whole), at.budget.provider_tokens(tokens))


def _left(at: PlannedMoment, name: str, reason: Reason, detail: str, queue: Sequence[Candidate]) -> Declined:
    tokens = sum(one.item.tokens for one in queue)
    return Declined(name, reason, detail, len(queue), at.budget.provider_tokens(tokens))


def _within_threshold(at: PlannedMoment) -> str:
    return f"the context's {at.size(at.context.tokens)} are within the threshold of {at.size(at.budget.trigger)}"


def _within_goal(at: PlannedMoment) -> str:
    return f"other evictions reached the goal of {at.size(at.budget.goal)}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
