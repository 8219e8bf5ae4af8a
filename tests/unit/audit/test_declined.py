"""Each reducer that evicts nothing has the reason that applies to it, with its figures."""

from dataclasses import replace
from typing import Any

import pytest

from app.core.plan.state.frontier import START
from app.core.plan.state.projection import project
from app.core.policy.groups import Caps, DialogueWindow, Economics, Retention, TtlPruning
from app.core.policy.policy import Policy
from app.core.tokens.budget import Budget
from app.core.tokens.models import ANTHROPIC
from app.wings.audit.declined import Declined, PlannedMoment, declined
from tests.unit.builders import COUNTER, Log


def log_of(results: int, tokens: int = 2_000) -> Log:
    """Return a log of one turn with a round for each result, each of another file."""
    log = Log()
    log.user()
    for number in range(results):
        call = log.call(body={"arguments": {"path": f"/f{number}.py"}})
        log.result(call, tokens)
        log.assistant()
    return log


def planned(log: Log, policy: Policy, target: int = 100_000, **facts: Any) -> PlannedMoment:
    context = project(log.events, START, COUNTER, turn=log.turn)
    budget = Budget(target, 0, 0, target, int(target * 0.7), target, 0.7, limit=target)
    budget = replace(budget, caps=facts.pop("caps", {}))
    return PlannedMoment(context, START, policy, budget, **{"moment": "warm", "cache": ANTHROPIC, **facts})


def reasons(at: PlannedMoment) -> dict[str, Declined]:
    return {one.reducer: one for one in declined(at)}


NO_FILES = Policy(retention=Retention(working_set=0))
PLAIN = Policy(evict="on_pressure", retention=Retention(working_set=0))


@pytest.mark.parametrize(
    ("results", "policy", "facts", "reason"),
    [
        (1, NO_FILES, {}, "nothing_eligible"),
        (8, Policy(), {}, "protected"),
        (5, NO_FILES, {"called": False}, "not_asked"),
        (5, Policy(retention=Retention(working_set=0), economics=Economics(least_tokens=90_000)), {}, "below_minimum"),
        (5, Policy(retention=Retention(working_set=0), economics=Economics(at_risk=0.0)), {}, "would_not_pay"),
        (5, Policy(retention=Retention(working_set=0), economics=Economics(factor=50)), {}, "would_not_pay"),
        (5, Policy(retention=NO_FILES.retention, economics=Economics(on_cold=False)), {"moment": "cold"}, "disabled"),
        (4, Policy(), {"moment": "pressed"}, "protected"),
        (5, NO_FILES, {"moment": "pressed", "stalled": "too little"}, "stalled"),
        (5, PLAIN, {}, "disabled"),
    ],
)  # fmt: skip
def test_economics(results: int, policy: Policy, facts: dict[str, Any], reason: str) -> None:
    target = 20_000 if facts.get("moment") == "pressed" else 100_000
    one = reasons(planned(log_of(results), policy, target, **facts))["economics"]
    assert one.reason == reason, one
    assert one.reason in ("nothing_eligible", "disabled") or (one.events and one.tokens)


def test_the_price_of_an_eviction_is_in_words() -> None:
    policy = Policy(retention=Retention(working_set=0), economics=Economics(factor=50))
    one = reasons(planned(log_of(5), policy))["economics"]
    assert "would save " in one.detail
    assert "again; it pays after about " in one.detail


@pytest.mark.parametrize(
    ("policy", "facts", "reducer", "reason"),
    [
        (NO_FILES, {}, "retention", "disabled"),
        (PLAIN, {}, "retention", "below_trigger"),
        (Policy(evict="on_cache_expiry"), {}, "retention", "not_asked"),
        (PLAIN, {"moment": "pressed"}, "retention", "reached_goal"),
        (Policy(), {}, "caps", "disabled"),
        (Policy(caps=Caps(tool_results=0.5)), {"caps": {"tool_results": 50_000}}, "caps", "within_limit"),
        (Policy(caps=Caps(tool_results=0.1)), {"caps": {"tool_results": 1_000}}, "caps", "protected"),
        (Policy(), {}, "dialogue_window", "disabled"),
        (Policy(dialogue_window=DialogueWindow(turns=3)), {}, "dialogue_window", "not_asked"),
        (Policy(dialogue_window=DialogueWindow(turns=3)), {"moment": "cold"}, "dialogue_window", "within_limit"),
        (Policy(), {}, "fold", "below_trigger"),
        (Policy(), {"moment": "cold"}, "fold", "below_trigger"),
        (Policy(), {"moment": "pressed"}, "fold", "no_summary"),
        (Policy(), {"moment": "pressed", "foldable": True}, "fold", "reached_goal"),
        (Policy(), {"moment": "pressed", "foldable": True, "forced": True}, "fold", "would_save_nothing"),
        (Policy(), {}, "last_resort", "within_limit"),
        (Policy(), {}, "expiry", "nothing_eligible"),
        (Policy(), {}, "ttl_pruning", "disabled"),
        (Policy(ttl_pruning=TtlPruning(ttl_seconds=60)), {"pruning": "fresh"}, "ttl_pruning", "not_due"),
        (Policy(ttl_pruning=TtlPruning(ttl_seconds=60)), {"pruning": "no_effect"}, "ttl_pruning", "nothing_eligible"),
        (Policy(), {}, "once", "disabled"),
        (Policy(economics=Economics(once_tokens=9_000)), {}, "once", "nothing_eligible"),
    ],
)
def test_the_other_reducers(policy: Policy, facts: dict[str, Any], reducer: str, reason: str) -> None:
    one = reasons(planned(log_of(5), policy, **facts))[reducer]
    assert one.reason == reason, one
    assert one.detail


def test_a_reducer_that_evicted_did_not_decline() -> None:
    assert "fold" not in reasons(planned(log_of(5), Policy(), evicted=frozenset({"fold"})))


def test_protections_name_the_rule_that_keeps_an_event() -> None:
    log = Log()
    log.user()
    small, large = log.call(), log.call(tokens=400)
    log.result(small, 100), log.result(large, 2_000)
    never = log.result(log.call("bash"), 2_000)
    pinned = log.result(log.call(), 2_000, pinned=True)
    old = log.result(log.call(), 2_000)
    newest = [log.result(log.call(), 2_000) for _ in range(2)]
    log.assistant()
    waiting = log.call()
    policy = Policy(evict="on_pressure", retention=Retention(working_set=0, never_evict=("bash",)))
    at = planned(log, policy)
    found = {item.event.seq: at.protections.protection(item) for item in at.context.items}
    assert [found[seq] for seq in (1, small, 4, never, pinned, *newest, waiting)] == [
        *("current_request", "below_minimum", "below_minimum", "never_evict", "pinned"),
        *("newest", "newest", "open_call"),
    ]
    assert [found[seq] for seq in (large, 5, old)] == [None, None, None]
