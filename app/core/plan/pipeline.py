"""The plan of a context: reducers run in order, the cheapest first, and their changes to the frontier get a cause."""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from app.core import dataclass, replace
from app.core.log.event import lazy
from app.core.memory.cover import fold_ends
from app.core.plan.reducers import ttl
from app.core.plan.reducers.caps import CAUSE as CAP
from app.core.plan.reducers.caps import CapsReducer, SummaryCapReducer
from app.core.plan.reducers.earnings import above_trigger, stall_reason, with_credit
from app.core.plan.reducers.economics import EconomicReducer, Moment
from app.core.plan.reducers.expiry import ExpiryReducer
from app.core.plan.reducers.fold import FoldReducer, HealReducer, fold_end
from app.core.plan.reducers.last_resort import restore
from app.core.plan.reducers.once import OnceReducer, once_reducer
from app.core.plan.reducers.questions import keep_questions
from app.core.plan.reducers.retention import RetentionReducer
from app.core.plan.reducers.ttl import TtlReducer
from app.core.plan.reducers.visibility import PinnedReducer, is_pinned_stub
from app.core.plan.reducers.window import WindowReducer
from app.core.plan.state.context import Context, Reduced
from app.core.plan.state.cuts import newest_from
from app.core.plan.state.frontier import START, Frontier
from app.core.plan.target import fit_target
from app.core.plan.update import PlanInputs, update_with_cause
from app.core.policy.policy import Policy
from app.core.tokens.budget import Budget

PREFIX_CAUSES: Final = ("system_prompt", "tools")


class Reducer(Protocol):
    """One pure rule of the plan."""

    def reduce(self, context: Context, budget: Budget, state: Frontier) -> Reduced:
        """Return the context and state after this rule; the same objects if it changes nothing."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The context to send and its frontier. `cause` is None if the frontier did not change: the epoch continues.

    `tokens_before` counts the updated context, before visibility and all reducers. `stalled` is the reason why a
    context above its trigger but within its target is not reduced, else None. `notice` is a text for the model in this
    call only. `pruning` is the state of TTL pruning, `moment` the one that was planned for. Events from `once_from` on
    are not to be cached; 0: all may be.
    """

    context: Context
    state: Frontier
    cause: str | None
    tokens_before: int
    stalled: str | None = None
    notice: str | None = None
    pruning: ttl.Status = "disabled"
    moment: Moment = "warm"
    once_from: int = 0


@dataclass(frozen=True)
class Situation:
    """The facts by which rows decide.

    `moment` and `before_evictions` (a frontier) are known only once the rows of `UNCONDITIONAL` have run.
    `keep_from` is the first seq of the policy's newest part; it is set for a forced reduction and for a retry.
    """

    read: PlanInputs
    budget: Budget
    policy: Policy
    force: bool
    moment: Moment = "warm"
    before_evictions: Frontier = START
    keep_from: int | None = None

    @property
    def evict_before(self) -> int | None:
        """The seq from which a retry evicts nothing; None for any other context."""
        return self.keep_from if self.budget.fallback_target else None

    @lazy
    def once(self) -> OnceReducer:
        """The reducer of results that are shown once."""
        read = self.read
        return once_reducer(self.policy, read.cache, read.outside_tokens, recall=read.recall and read.caching)

    @lazy
    def economic(self) -> EconomicReducer:
        """The reducer of evictions that pay."""
        read, policy = self.read, self.policy
        called = read.used_at is not None and read.caching
        return EconomicReducer(
            policy.retention,
            policy.economics,
            read.cache,
            self.moment,
            read.outside_tokens,
            called=called,
            keep_from=self.evict_before,
            once=self.once,
        )

    @property
    def at_every_assembly(self) -> bool:
        """Whether the policy evicts at every context."""
        return self.policy.evict == "every_assembly"

    @property
    def may_evict(self) -> bool:
        """Whether `policy.evict` lets a rule evict at this moment without checking that it pays."""
        if self.moment == "pressed" or self.at_every_assembly:
            return True
        evict = self.policy.evict
        if evict == "economic":
            return self.moment == "cold" and self.policy.economics.on_cold
        return self.moment == "cold" and evict == "on_cache_expiry"


class Row(NamedTuple):
    """A reducer, its condition (on the situation and the result of the earlier rows), and its cause."""

    reducer: Callable[[Situation], Reducer]
    when: Callable[[Situation, Reduced], bool]
    cause: str | None = None


def _retention(at: Situation) -> Reducer:
    whole = at.moment != "pressed" or at.at_every_assembly
    # A warm view that has stubs already gets a new epoch only for a saving that lasts.
    least = 1 - at.policy.low_water if at.moment == "warm" and at.before_evictions.stubs else 0.0
    return RetentionReducer(at.policy.retention, least=least, whole=whole, keep_from=at.evict_before)


def _fold(at: Situation) -> Reducer:
    kept, tree = at.policy.retention.working_set, at.read.tree
    return FoldReducer(tree, at.policy.summarize, everything=at.force, keep_from=at.keep_from, working_set_calls=kept)


def _fold_requested(at: Situation) -> Reducer:
    tree, rules = at.read.tree, at.policy.summarize
    last = fold_end(at.read.fold_to, fold_ends(tree))
    return FoldReducer(tuple(one for one in tree if one.to_seq <= last), rules, everything=True)


def _should_fold(at: Situation, done: Reduced) -> bool:
    """Return whether to fold summaries: if the budget demands it, or at a cold cache if it soon will."""
    tokens = done.context.tokens
    if at.moment == "pressed":
        return at.force or tokens > at.budget.goal
    return at.moment == "cold" and tokens > at.policy.soft_ratio * at.budget.trigger


HEALING: Final = Row(
    lambda at: HealReducer(at.read.tree, at.policy.summarize, at.policy.retention.working_set),
    lambda at, done: bool(at.read.tree and done.state.drops),
    "healed",
)
UNCONDITIONAL: Final = (
    Row(lambda at: ExpiryReducer(at.read.now), lambda _, done: bool(done.context.perishable), "expiry"),
    Row(
        lambda at: TtlReducer(at.policy.ttl_pruning, at.read.now, at.read.used_at, recall=at.read.recall),
        lambda at, _: bool(at.policy.ttl_pruning.ttl_seconds),
        ttl.CAUSE,
    ),
    HEALING,
    Row(_fold_requested, lambda at, done: bool(at.read.tree) and done.state.folded_to < at.read.fold_to, "forced"),
)
"""The rows that run at any moment; each opens an epoch for its own cause."""
EVICTIONS: Final = (
    Row(lambda at: at.once, lambda at, _: at.policy.economics.once_tokens is not None and at.read.used_at is not None),
    Row(lambda at: at.economic, lambda at, _: at.policy.evict == "economic"),
    Row(_retention, lambda at, _: at.policy.evict != "economic" and at.may_evict),
    Row(lambda at: CapsReducer(at.policy.retention), lambda at, _: bool(at.budget.caps), CAP),
    Row(lambda at: WindowReducer(at.policy.dialogue_window), lambda at, _: at.moment != "warm" or at.at_every_assembly),
    Row(
        lambda at: RetentionReducer(at.policy.retention, whole=True),  # free, because an epoch is opened anyway
        lambda at, done: done.state is not at.before_evictions and at.at_every_assembly,
    ),
    HEALING,  # the rows above may have dropped events that a summary covers
    Row(_fold, lambda at, done: bool(at.read.tree) and _should_fold(at, done)),
    Row(
        lambda at: SummaryCapReducer((*at.read.folded, *at.read.tree), at.policy.summarize),
        lambda at, done: "summaries" in at.budget.caps and bool(done.state.folds),
        CAP,
    ),
    Row(lambda _: PinnedReducer(), lambda _, done: any(map(is_pinned_stub, done.context.pinned_stubs))),
)
"""The rows that run once the moment is known. Most evict, the cheapest first; the last shows pinned events again."""


@dataclass(frozen=True, slots=True)
class PlanStart:
    """A plan before evictions: `base` is the result so far, and `unchanged` the plan if nothing is evicted.

    `at.moment` is the moment to plan for. `initial` is the updated context, before any row, `previous` the frontier of
    the previous call.
    """

    at: Situation
    base: Reduced
    initial: Context
    previous: Frontier
    unchanged: Plan


def plan(
    read: PlanInputs,
    budget: Budget,
    policy: Policy,
    state: Frontier,
    *,
    force: bool = False,
    evictions: Sequence[Row] = EVICTIONS,
) -> Plan:
    """Plan the context to send, starting from the frontier `state`. Raises CannotFit, with the size that would fit.

    Expired and hidden events leave immediately, others by the conditions of their rows: most if `policy.evict` permits
    it (when it pays, when the cache is cold, at every assembly) or the trigger or the caller (`force`) demands it.
    """
    return finish(begin(read, budget, policy, state, force=force), evictions)


def begin(read: PlanInputs, budget: Budget, policy: Policy, state: Frontier, *, force: bool = False) -> PlanStart:
    """Bring the context up to date, run the rows that apply at any moment, and determine the moment to plan for."""
    initial, cause, tokens_before = update_with_cause(read, budget, policy, state)
    at = Situation(read, budget, policy, force)
    base, causes = _run(UNCONDITIONAL, initial, at)
    cause = causes[-1] if causes else cause
    rules, pruned, pruning = policy.ttl_pruning, ttl.CAUSE in causes, ttl.DISABLED
    if rules.ttl_seconds:
        pruning = ttl.status(rules, read.now, read.used_at, initial.context, changed=pruned)
    pressed = force or base.context.tokens > budget.trigger
    moment: Moment = "pressed" if pressed else "cold" if _rewrites_all(read, cause) else "warm"
    at = replace(at, moment=moment, before_evictions=base.state)
    unchanged = Plan(
        context=base.context,
        state=base.state,
        cause=cause,
        tokens_before=tokens_before,
        notice=ttl.notice(rules, recall=read.recall) if pruned and rules.say else None,
        pruning=pruning,
        moment=moment,
        once_from=at.once.shown_from(base.context),
    )
    return PlanStart(at, base, initial.context, state, unchanged)


def finish(begun: PlanStart, evictions: Sequence[Row] = EVICTIONS) -> Plan:
    """Complete the plan with evictions. Raises CannotFit."""
    at, base, state, cause = begun.at, begun.base, begun.previous, begun.unchanged.cause
    read, budget, pressed = at.read, at.budget, at.moment == "pressed"
    if at.force or budget.fallback_target:
        at = replace(at, keep_from=newest_from(base.context, budget, at.policy))
    after, stalled = base, None
    reduced, causes = _run(evictions, base, at)
    if budget.fallback_target:  # rules evict all that they may, which can leave room that a retry can use
        reduced = restore(reduced, base.state, budget, budget.goal)
    if reduced.state != base.state:
        stalled = None if at.force or not pressed else stall_reason(base, reduced, budget)
        if stalled is None:
            after, cause = reduced, _cause(at, base, causes, cold=_rewrites_all(read, cause))
    elif pressed and base.context.tokens > budget.trigger:
        stalled = f"no other eviction is allowed, and {above_trigger(base, budget)}"
    after, cause = fit_target(after, base, read, budget, at.policy, state=state, cause=cause)
    if after.state.folds != state.folds and at.policy.summarize.view == "all":
        after = keep_questions(after, begun.initial, budget)
    stalled = stalled if after.context.tokens > budget.trigger else None
    if after.state == state:
        cause = None
    else:
        after = Reduced(after.context, _credit_frontier(after, begun))
    once_from = at.once.shown_from(after.context)
    done = replace(begun.unchanged, context=after.context, state=after.state, once_from=once_from)
    return replace(done, cause=cause, stalled=stalled)


def finish_unchanged(begun: PlanStart, evictions: Sequence[Row] = EVICTIONS) -> Plan | None:
    """Complete the plan if it evicts nothing and opens no epoch, without computing evictions; else return None."""
    at, base = begun.at, begun.base
    if at.moment != "warm" or base.state is not begun.previous or base.context.tokens > at.budget.target:
        return None
    for row in evictions:
        if row.when(at, base):
            reducer = row.reducer(at)
            if not isinstance(reducer, OnceReducer | EconomicReducer | HealReducer):
                return None
            if not reducer.idle(base.context, base.state):
                return None
    return begun.unchanged


def _rewrites_all(read: PlanInputs, cause: str | None) -> bool:
    """Return whether an earlier call left a cache that is of no use to this one, judged before evictions."""
    return read.is_cold or (read.caching and cause in PREFIX_CAUSES and read.used_at is not None)


def _credit_frontier(after: Reduced, begun: PlanStart) -> Frontier:
    """Return a changed frontier with the number of decisions that it reflects and the earnings of its evictions."""
    read, state = begun.at.read, after.state
    if state.decisions != read.decisions:
        state = replace(state, decisions=read.decisions)
    if begun.at.policy.evict != "economic":
        return state
    whole = _rewrites_all(read, begun.unchanged.cause) or read.used_at is None
    head = read.events[-1].seq if read.events else 0
    outside, end = read.outside_tokens, begun.at.once.written_to(begun.base.context)
    return with_credit(after.context, begun.previous, state, read.cache, head, cold=whole, outside=outside, end=end)


def _run(rows: Sequence[Row], done: Reduced, at: Situation) -> tuple[Reduced, list[str]]:
    """Run the rows; return the result, and the causes of the rows that changed the state, "" for rows without one."""
    causes: list[str] = []
    for row in rows:
        if not row.when(at, done):
            continue
        after = row.reducer(at).reduce(done.context, at.budget, done.state)
        if after.state is not done.state:
            causes.append(row.cause or "")
        done = after
    return done, causes


def _cause(at: Situation, base: Reduced, causes: Sequence[str], *, cold: bool) -> str:
    """Return the cause of an epoch that evictions open; `causes` are those of the rows that made them."""
    pressed = at.moment == "pressed"
    if not pressed and CAP in causes and {*causes} <= {CAP, HEALING.cause}:
        return CAP
    if base.context.tokens > at.budget.target or (pressed and not at.force):
        return "budget"
    if at.force:
        return "forced"
    if at.at_every_assembly:
        return "policy"
    return "cold_cache" if cold else "break_even"
