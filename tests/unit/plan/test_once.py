"""Results shown once: not cached in the call that shows them, and stubs from the next call on."""

from dataclasses import replace
from typing import Any

import pytest

from app.core.plan.pipeline import Plan, plan
from app.core.plan.state.frontier import START, Frontier
from app.core.plan.update import PlanInputs
from app.core.policy.groups import Economics, Retention
from app.core.policy.policy import Policy
from app.core.tokens.budget import Budget
from app.core.tokens.models import ANTHROPIC, OPENAI_PAID
from tests.unit.builders import COUNTER, Log

ROOM = 10_000_000
POLICY = Policy(
    evict="economic",
    retention=Retention(identifiers=0.0, never_evict=("ask",)),
    economics=Economics(at_risk=0, once_tokens=1_000),
)


def make_plan(log: Log, state: Frontier = START, policy: Policy = POLICY, **given: Any) -> Plan:
    read = PlanInputs(log.events, log.turn, COUNTER, now=10.0, used_at=0.0, cache=ANTHROPIC, recall=True)
    return plan(replace(read, **given), Budget(ROOM, 0, 0, ROOM, ROOM, ROOM, 0.7), policy, state)


def new_log() -> Log:
    log = Log()
    log.user(2_000)
    return log


def test_a_large_result_is_a_stub_from_the_next_call_on() -> None:
    log = new_log()
    log.round(tokens=900)
    large = log.round(tokens=3_000)
    first = make_plan(log, used_at=None)
    assert (first.cause, first.once_from) == (None, large)
    log.round(tokens=900)
    second = make_plan(log)
    assert (second.cause, second.once_from) == ("break_even", 0)
    assert [(stub.seq, stub.reducer, stub.reason) for stub in second.state.stubs] == [(large, "once", "seen_once")]
    log.assistant()
    log.user()
    third = make_plan(log, second.state)
    assert (third.cause, third.state) == (None, second.state)


@pytest.mark.parametrize(
    ("policy", "given"),
    [
        (POLICY, {"recall": False}),
        (POLICY, {"caching": False}),
        (POLICY, {"cache": OPENAI_PAID}),
        (POLICY, {"cache": replace(ANTHROPIC, minimum_tokens=4_096)}),
        (replace(POLICY, evict="on_pressure"), {}),
        (replace(POLICY, economics=Economics(at_risk=0)), {}),
        (replace(POLICY, retention=Retention(never_evict=("read",))), {}),
    ],
)
def test_without_one_of_the_conditions_a_result_is_cached_and_stays(policy: Policy, given: dict[str, Any]) -> None:
    log = new_log()
    log.round(tokens=3_000)
    first = make_plan(log, policy=policy, **given)
    log.assistant()
    log.user()
    second = make_plan(log, first.state, policy, **given)
    assert (first.once_from, second.once_from, second.state.stubs) == (0, 0, ())


def test_results_after_the_first_must_pay_off() -> None:
    log = new_log()
    calls = [log.call("ask"), log.call(), log.call("ask"), log.call()]
    sizes = (5_000, 3_000, 200, 2_000)
    results = [log.result(call, tokens) for call, tokens in zip(calls, sizes, strict=True)]
    assert make_plan(log).once_from == results[1]  # the cheap one between them is cached by the next call
    log.assistant()
    log.user()
    assert [stub.seq for stub in make_plan(log).state.stubs] == [results[1], results[3]]
    dear = new_log()
    calls = [dear.call(), dear.call("ask")]
    for call, tokens in zip(calls, (3_000, 1_000), strict=True):
        dear.result(call, tokens)
    assert make_plan(dear).once_from == 0


def test_its_evictions_earn_no_more_than_one_read_of_the_result() -> None:
    log = new_log()
    log.round(tokens=4_000)
    for _ in range(30):
        log.round(tokens=40)
    large = log.round(tokens=3_000)
    log.assistant()
    log.user()
    found = make_plan(log)
    assert [stub.seq for stub in found.state.stubs] == [large]
    assert 0 < found.state.earned <= ANTHROPIC.read_price * 3_000


def test_a_late_result_is_not_kept_out_with_all_that_follows_it() -> None:
    log = new_log()
    call = log.call()
    log.assistant()
    log.user(4_000)
    log.result(call, 3_000)
    assert make_plan(log).once_from == 0


def add_read(log: Log, path: str, tokens: int = 3_000) -> int:
    return log.result(log.call(body={"arguments": {"path": path}}), tokens)


def test_a_file_that_was_modified_stays() -> None:
    log = new_log()
    log.result(log.call("edit", body={"arguments": {"path": "a.go", "old": "x"}}), 20)
    add_read(log, "a.go")
    assert make_plan(log).once_from == 0
    assert make_plan(log, policy=replace(POLICY, retention=replace(POLICY.retention, working_set=0))).once_from > 0
    log.assistant()
    log.user()
    other = add_read(log, "b.go")
    assert make_plan(log).once_from == other


def test_a_result_that_was_read_again_stays() -> None:
    log = new_log()
    first = add_read(log, "a.go")
    log.assistant()
    log.user()
    state = make_plan(log).state
    assert [stub.seq for stub in state.stubs] == [first]
    add_read(log, "a.go")
    assert make_plan(log, state).once_from == 0
    log.assistant()
    log.user()
    third = make_plan(log, state)
    assert (third.cause, third.state) == (None, state)


def test_a_command_that_printed_as_much_before_is_read_again() -> None:
    log = new_log()
    calls = [log.call("ask"), log.call("run", body={"arguments": {"command": "go vet"}})]
    for call in calls:
        log.result(call, 2_000)
    log.assistant()
    for tokens, shown_once in ((2_000, False), (2_500, True)):
        seq = log.result(log.call("run", body={"arguments": {"command": "go vet"}}), tokens)
        assert make_plan(log).once_from == (seq if shown_once else 0)


@pytest.mark.parametrize("tool", ["recall", "mcp__palimpsest__recall"])
def test_recalled_events_stay(tool: str) -> None:
    log = new_log()
    log.round(tool, 3_000)
    assert make_plan(log).once_from == 0


def test_a_failed_tools_result_does_not_count_as_read_again() -> None:
    log = new_log()
    log.result(log.call(body={"arguments": {"path": "a.go"}}), 2_000, is_error=True)
    log.assistant()
    again = add_read(log, "a.go", 2_000)
    assert make_plan(log).once_from == again
