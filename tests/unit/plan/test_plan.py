"""The reducers and their order, on small logs."""

import json

import pytest

from app.core.errors import CannotFit
from app.core.plan.pipeline import Plan, begin, finish
from app.core.plan.state.frontier import START, Drop, from_json, merge_drops, to_json
from app.core.plan.update import PlanInputs
from app.core.policy.groups import DialogueWindow, ToolRule
from app.core.policy.policy import Policy
from app.core.record.evictions import evictions
from app.core.tokens.budget import Budget
from tests.unit.builders import COUNTER, Log, simple_retention

EVERY = "every_assembly"


def stubbed_seqs(planned: Plan) -> list[int]:
    return [stub.seq for stub in planned.state.stubs]


def visible_seqs(planned: Plan) -> list[int]:
    return [item.event.seq for item in planned.context.items]


def test_nothing_moves_while_it_fits() -> None:
    log = Log()
    for _ in range(20):
        log.user()
        log.round(tokens=500)
    planned = log.plan(100_000)
    assert (planned.cause, planned.state) == (None, START)


def test_the_moment_is_known_before_evictions() -> None:
    log = Log()
    log.user()
    for _ in range(20):
        log.round(tokens=500)
    begun = begin(PlanInputs(log.events, log.turn, COUNTER), Budget(4_000, 0, 0, 4_000, 2_800), Policy(), START)
    assert begun.at.moment == "pressed"
    assert begun.base.context.tokens > 4_000
    assert finish(begun).context.tokens <= 4_000


def test_a_system_prompt_takes_effect_and_a_newer_one_replaces_it() -> None:
    log = Log()
    first = log.system()
    log.user()
    one = log.plan(10_000)
    second = log.system()
    two = log.plan(10_000, state=one.state)
    assert (one.cause, one.state.system_seq) == ("system_prompt", first)
    assert (two.cause, two.state.system_seq) == ("system_prompt", second)
    assert [row.seq for row in two.state.superseded] == [first]
    assert [event.seq for event in two.context.prefix] == [second]


def test_retention_keeps_the_last_of_each_tool() -> None:
    log = Log()
    log.user()
    reads = [log.round("read") for _ in range(4)]
    asks = [log.round("ask") for _ in range(2)]
    plans = [log.round("plan") for _ in range(3)]
    policy = Policy(
        evict=EVERY,
        retention=simple_retention(keep_last=1, tools={"ask": ToolRule(keep_last=2)}, never_evict=("plan",)),
    )
    planned = log.plan(100_000, policy=policy)
    assert stubbed_seqs(planned) == reads[:-1]
    assert visible_seqs(planned) == [e.seq for e in log.events]
    assert not {*asks, *plans} & set(stubbed_seqs(planned))


def test_retention_by_age_counts_turns() -> None:
    log = Log()
    results = []
    for _ in range(4):
        log.user()
        results.append(log.round())
    planned = log.plan(100_000, policy=Policy(evict=EVERY, retention=simple_retention(keep_last=None, age_turns=2)))
    assert stubbed_seqs(planned) == results[:2]
    assert {stub.reason for stub in planned.state.stubs} == {"at_least_2_turns_old"}


def test_pinned_and_small_results_stay_whole() -> None:
    log = Log()
    log.user()
    pinned = log.result(log.call(), 500, pinned=True)
    small = log.round(tokens=12)
    for _ in range(3):
        log.round()
    planned = log.plan(100_000, policy=Policy(evict=EVERY, retention=simple_retention(keep_last=1)))
    assert pinned not in stubbed_seqs(planned)
    assert small not in stubbed_seqs(planned)


def test_under_pressure_only_as_much_as_brings_it_to_the_goal() -> None:
    log = Log()
    log.user()
    results = [log.round(tokens=1000) for _ in range(20)]
    planned = log.plan(16_000, goal=12_000, policy=Policy(evict="on_pressure", retention=simple_retention(keep_last=2)))
    assert planned.cause == "budget"
    assert planned.context.tokens <= 12_000
    assert stubbed_seqs(planned) == results[: len(stubbed_seqs(planned))]
    assert 8 <= len(stubbed_seqs(planned)) < 18
    assert not planned.state.drops


def test_the_window_keeps_whole_turns_and_the_preamble() -> None:
    log = Log()
    preamble = log.assistant()
    users = []
    for _ in range(5):
        users.append(log.user())
        log.round(tokens=100)
    by_turns = log.plan(100_000, policy=Policy(evict=EVERY, dialogue_window=DialogueWindow(turns=2)))
    by_tokens = log.plan(100_000, policy=Policy(evict=EVERY, dialogue_window=DialogueWindow(tokens=300)))
    assert visible_seqs(by_turns)[:2] == visible_seqs(by_tokens)[:2] == [preamble, users[3]]
    assert {drop.reason for drop in by_turns.state.drops} == {"older_than_2_turns"}
    assert {drop.reason for drop in by_tokens.state.drops} == {"over_300_tokens"}


def test_the_last_resort_drops_oldest_turns_and_leaves_a_note() -> None:
    log = Log()
    log.system()
    for _ in range(20):
        log.user(250)
        log.assistant(250)
    planned = log.plan(5_000, goal=3_500)
    assert planned.context.tokens <= 3_500
    assert planned.state.drops == (
        Drop(2, planned.state.floor, planned.state.left_out.tokens, "last_resort", "oldest_turns_over_target"),
    )
    assert visible_seqs(planned)[0] == planned.state.floor + 1
    assert "earlier turns" in planned.state.note
    assert planned.state.kept == (1,)


def test_the_running_turn_is_shortened_then_stubbed_then_loses_rounds() -> None:
    one = Log()
    one.user()
    big = one.round(tokens=20_000)
    shortened = one.plan(8_000)
    assert [(s.seq, s.chars > 0, s.reason) for s in shortened.state.stubs] == [(big, True, "shortened")]

    many = Log()
    user = many.user()
    results = [many.round(tokens=1000) for _ in range(300)]
    planned = many.plan(12_000)
    assert planned.context.tokens <= 12_000
    assert visible_seqs(planned)[0] == user
    assert visible_seqs(planned)[-1] == results[-1]
    assert results[-1] not in [s.seq for s in planned.state.stubs if not s.chars]
    assert planned.state.drops[0].reason == "oldest_rounds_over_target"


def test_open_calls_pins_and_the_users_words_stay_whatever_happens() -> None:
    log = Log()
    log.user()
    waiting = log.call("deploy")
    log.user(pinned=True)
    pinned = log.turn
    for _ in range(30):
        log.user(200)
        log.round(tokens=2000)
    planned = log.plan(3_000)
    shown = visible_seqs(planned)
    assert waiting in shown
    assert any(e.pinned and e.turn == pinned for e in (i.event for i in planned.context.items))
    assert log.events[-3].seq in shown
    assert planned.context.tokens <= 3_000


def test_a_context_that_cannot_fit_names_the_excess() -> None:
    log = Log()
    log.system(5_000)
    log.user()
    with pytest.raises(CannotFit) as refused:
        log.plan(1_000)
    assert refused.value.fields["target"] == 1_000
    assert refused.value.fields["minimum_tokens"] > 5_000
    assert refused.value.fields["by_source"]["system"] == 5_000


def test_a_frontier_only_moves_forward() -> None:
    log = Log()
    state = START
    for _ in range(60):
        log.user(100)
        for _ in range(3):
            log.round(tokens=700)
        planned = log.plan(10_000, state=state)
        assert planned.state.floor >= state.floor
        assert {s.seq for s in state.stubs if s.seq > planned.state.floor} <= {s.seq for s in planned.state.stubs}
        assert planned.context.tokens <= 10_000
        state = planned.state
    assert len(evictions(state, planned.context)) <= 4


def test_a_frontier_survives_its_json() -> None:
    log = Log()
    log.system()
    for _ in range(30):
        log.user(100)
        log.round(tokens=700)
    state = log.plan(4_000).state
    assert from_json(json.loads(json.dumps(to_json(state)))) == state
    assert to_json(START) == {}


def test_neighbouring_drops_with_one_reason_are_one() -> None:
    drops = [Drop(4, 5, 1, "a", "x"), Drop(1, 3, 2, "a", "x"), Drop(6, 6, 3, "a", "y"), Drop(8, 8, 4, "a", "y")]
    assert merge_drops(drops) == (Drop(1, 5, 3, "a", "x"), Drop(6, 6, 3, "a", "y"), Drop(8, 8, 4, "a", "y"))
