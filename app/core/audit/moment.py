"""The moment of a recorded call: its context and the facts by which its reducers decided, derived from its record."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from app.core.assembly.assemble import CallRecord
from app.core.audit.declined import PlannedMoment
from app.core.audit.replay_call import ReplayedCall
from app.core.lexicon.tools import is_recall_tool
from app.core.log.event import Event
from app.core.plan.reducers.economics import Moment
from app.core.plan.reducers.ttl import Status
from app.core.plan.state.frontier import START, Frontier
from app.core.plan.state.projection import project
from app.core.policy.policy import Policy
from app.core.record.evictions import newly_left_out
from app.core.render.formats.tools import tool_names
from app.core.tokens.budget import Budget, budget_for
from app.core.tokens.counter import REQUEST_TOKENS, Counter
from app.core.tokens.models import CacheProfile


@dataclass(frozen=True, slots=True)
class RecordedMoment:
    """The stored facts about a call's moment.

    `cause` and `before`, the frontier before, are those of the epoch that the call opened; None if it opened none.
    `shown_again` and `pins` (seq to whether it is pinned) are decisions on events.
    """

    policy: Policy
    cache: CacheProfile
    cause: str | None = None
    before: Frontier | None = None
    foldable: bool = False
    shown_again: frozenset[int] = frozenset()
    pins: Mapping[int, bool] | None = None


def planned_moment(
    call: ReplayedCall,
    events: Mapping[int, Event],
    state: Frontier,
    record: CallRecord,
    facts: RecordedMoment,
    counter: Counter,
) -> PlannedMoment | None:
    """Return the moment of a call that was rendered again; None if its record does not have it, or for a retry.

    `events` are those of the call as `counter` counts them, by seq. Raises InvalidPolicy or CannotFit for an impossible
    budget.
    """
    manifest, policy = record.manifest, facts.policy
    if manifest.moment is None or record.retry_of is not None:
        return None
    pins = facts.pins or {}
    counted = [replace(one, pinned=pins.get(seq, one.pinned)) if seq in pins else one for seq, one in events.items()]
    budget = recorded_budget(record, policy)
    ephemeral = max(0, budget.own(manifest.by_source.get("ephemeral", 0)) - REQUEST_TOKENS)
    context = project(
        sorted(counted, key=lambda one: one.seq),
        state,
        counter,
        turn=call.context.turn,
        shows=policy.shows,
        ephemeral_tokens=ephemeral,
        summaries=call.context.summaries,
    )
    context = replace(context, shown_again=facts.shown_again)
    moment, opened = cast(Moment, manifest.moment), facts.cause is not None
    forced = facts.cause == "forced" if opened else moment == "pressed" and context.tokens <= budget.trigger
    return PlannedMoment(
        context=context,
        state=state,
        policy=policy,
        budget=budget,
        moment=moment,
        cache=facts.cache,
        called=manifest.caching and facts.cause != "start",
        outside=manifest.outside,
        recall=(manifest.recall or policy.recall or _has_recall(call.layout.tools)) and manifest.caching,
        forced=forced,
        foldable=facts.foldable,
        evicted=frozenset(newly_left_out(facts.before or START, state)) if opened else frozenset(),
        stalled=manifest.stalled,
        pruning=cast(Status, manifest.ttl_pruning),
    )


def recorded_budget(record: CallRecord, policy: Policy) -> Budget:
    """Return the budget of a call by its record. Raises InvalidPolicy or CannotFit for an impossible one."""
    manifest = record.manifest
    reserves = replace(policy, reserve_tokens=manifest.reserve, injection_reserve_tokens=manifest.injection_reserve)
    room = manifest.window - manifest.outside - manifest.reserve - manifest.injection_reserve
    margin = max(0.0, room / max(1, record.target) - 1)
    ratio = manifest.calibration.ratio if manifest.calibration else 1.0
    return budget_for(reserves, manifest.window, margin, ratio, outside=manifest.outside)


def _has_recall(tools: Sequence[Mapping[str, Any]]) -> bool:
    return any(map(is_recall_tool, tool_names(list(tools))))
