"""The plan: run the reducers in order, cheap before dear, and say whether the state came out changed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from app.core.budget import Budget
from app.core.errors import CannotFit
from app.core.log import Event
from app.core.plan import settle
from app.core.plan.context import NOTHING_UNREAD, Context, Reduced, Unread, project
from app.core.plan.drop import refresh_note
from app.core.plan.frontier import Frontier
from app.core.plan.grow import grow
from app.core.plan.last_resort import LastResortReducer
from app.core.plan.retention import RetentionReducer
from app.core.plan.window import WindowReducer
from app.core.policy import Policy
from app.core.tokens import Counter


class Reducer(Protocol):
    """One pure rule of the plan."""

    def reduce(self, context: Context, budget: Budget, state: Frontier) -> Reduced:
        """The context and state after this rule; the same objects when it has nothing to do."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How an earlier plan came out: the context that `state` made of the first `count` events."""

    context: Context
    state: Frontier
    count: int


@dataclass(frozen=True, slots=True)
class Read:
    """What was read of a session for one view, and what counts it. `turn` is the running turn's number.

    `before`, an earlier plan of the same view over the first of these events, spares looking at those again.
    """

    events: Sequence[Event]
    turn: int
    counter: Counter
    unread: Unread = NOTHING_UNREAD
    ephemeral_tokens: int = 0
    before: Standing | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """`cause` is None when the state did not change: then the epoch still stands.

    `tokens_before` is what the context took before any reducer ran.
    """

    context: Context
    state: Frontier
    cause: str | None
    tokens_before: int


def reducers(policy: Policy) -> tuple[Reducer, ...]:
    """The reducers of a policy, cheap before dear."""
    return (RetentionReducer(policy.retention), WindowReducer(policy.dialogue_window), LastResortReducer())


def plan(read: Read, budget: Budget, policy: Policy, state: Frontier, *, force: bool = False) -> Plan:
    """Reduce only when the target forces it, or the policy says at every assembly, or the caller demands it (`force`).

    Raises CannotFit when nothing legal fits, with the least it could be brought to.
    """
    grown = _grow(read, policy, state)
    context, settled, cause = (grown, state, None) if grown else _settle(read, policy, state)
    before = context.tokens
    after = Reduced(context, settled)
    every = policy.evict == "every_assembly"
    if every or force or before > budget.target:
        aim = replace(budget, goal=0) if every else budget
        for reducer in reducers(policy):
            last = isinstance(reducer, LastResortReducer)
            after = reducer.reduce(after.context, budget if last else aim, after.state)
    if after.context.tokens > budget.target:
        raise CannotFit(
            f"the smallest legal context takes {after.context.tokens} tokens, but the target is {budget.target}",
            minimum_tokens=after.context.tokens,
            target=budget.target,
            by_source=after.context.by_source,
        )
    if after.state != settled:
        cause = "budget" if before > budget.target else "forced" if force else "policy"
    return Plan(after.context, after.state, cause if after.state != state else None, before)


def _grow(read: Read, policy: Policy, state: Frontier) -> Context | None:
    before = read.before
    if before is None or before.state is not state or before.context.counter != read.counter:
        return None
    if policy.authors is not None:
        return None
    return grow(before.context, read.events[before.count :], turn=read.turn, ephemeral_tokens=read.ephemeral_tokens)


def _settle(read: Read, policy: Policy, state: Frontier) -> tuple[Context, Frontier, str | None]:
    cause = None
    settled = settle.prefix(read.events, state)
    if settled is not state:
        cause = "system_prompt" if settled.system_seq != state.system_seq else "tools"
    context = _project(read, policy, settled)
    for rule, name in ((settle.unread, "budget"), (settle.late_results, "late_result")):
        changed = rule(context, settled)
        if changed is not settled:
            context, settled, cause = _project(read, policy, changed), changed, name
    if settled.left_out != state.left_out:
        reduced = refresh_note(context, settled)
        context, settled = reduced.context, reduced.state
    return context, settled, cause


def _project(read: Read, policy: Policy, state: Frontier) -> Context:
    return project(
        read.events,
        state,
        read.counter,
        turn=read.turn,
        authors=None if policy.authors is None else frozenset(policy.authors),
        ephemeral_tokens=read.ephemeral_tokens,
        unread=read.unread,
    )
