"""Stubs that the last resort undoes: only those that the budget alone required."""

from dataclasses import replace

import pytest

from app.core.plan.reducers.last_resort import restore
from app.core.plan.state.context import Reduced
from app.core.plan.state.frontier import START
from app.core.plan.state.stubs import apply_stubs, stub_for
from app.core.tokens.budget import Budget
from tests.unit.builders import Log

ROOM = Budget(100_000, 0, 0, 100_000, 100_000)


def stubbed_by(*reducers: str) -> tuple[list[int], Reduced]:
    """Return the seqs of results and a context in which each reducer has stubbed one of them."""
    log = Log()
    log.user()
    results = [log.round() for _ in reducers]
    context = log.plan(100_000).context
    made = [
        stub_for(log.events[seq - 1], context, reducer, "for a test")
        for seq, reducer in zip(results, reducers, strict=True)
    ]
    return results, apply_stubs(context, START, [stub for stub in made if stub is not None])


def stubs(done: Reduced) -> list[int]:
    return [stub.seq for stub in done.state.stubs]


@pytest.mark.parametrize("rule", ["ttl_pruning", "caps", "retention", "expiry", "visibility"])
def test_evictions_by_a_rule_of_the_policy_stay(rule: str) -> None:
    results, done = stubbed_by(rule, "last_resort", "economics")
    assert stubs(done) == results
    assert stubs(restore(done, START, ROOM, 100_000)) == results[:1]


def test_earlier_evictions_stay() -> None:
    results, done = stubbed_by("economics", "economics")
    before = replace(START, stubs=done.state.stubs[:1])
    assert stubs(restore(done, before, ROOM, 100_000)) == results[:1]


def test_results_are_restored_up_to_the_goal_and_the_cap() -> None:
    results, done = stubbed_by("last_resort", "last_resort", "last_resort")
    least = sum(stub.tokens for stub in done.state.stubs)
    capped = replace(ROOM, caps={"tool_results": least + 600})
    given = restore(done, START, capped, 100_000)
    assert results[0] in stubs(given)
    assert results[2] not in stubs(given)
    assert sum(item.tokens for item in given.context.items if item.event.seq in results) <= least + 600
    tight = restore(done, START, ROOM, done.context.tokens + 600)
    assert done.context.tokens < tight.context.tokens <= done.context.tokens + 600
    assert restore(done, START, ROOM, done.context.tokens) == done
