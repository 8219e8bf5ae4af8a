"""The break-even of evictions, their order, and their stubs."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.plan.pipeline import Plan, plan
from app.core.plan.reducers.earnings import earnings_so_far
from app.core.plan.state.frontier import START, Frontier, from_json, to_json
from app.core.plan.update import PlanInputs
from app.core.policy.groups import Economics, Retention
from app.core.policy.policy import Policy
from app.core.tokens.budget import Budget
from app.core.tokens.models import CacheProfile
from tests.support.examples import examples
from tests.unit.builders import COUNTER, Log, simple_retention

FIVE_MINUTES = CacheProfile(read_price=0.1, write_price=1.25, ttl_seconds=300, minimum_tokens=0, lookback_blocks=None)
ROOM = 1_000_000
RULES = simple_retention(keep_last=1)


def economic_policy(
    *, factor: float = 1.0, least: int = 0, at_risk: float = 1.0, rules: Retention = RULES, **more: object
) -> Policy:
    economics = Economics(factor=factor, least_tokens=least, at_risk=at_risk)
    return Policy(evict="economic", retention=rules, economics=economics, **more)


def make_plan(
    log: Log,
    policy: Policy,
    state: Frontier = START,
    *,
    now: float | None = 0.0,
    used_at: float | None = 0.0,
    target: int = ROOM,
    threshold: int = 0,
    cache: CacheProfile = FIVE_MINUTES,
    outside: int = 0,
) -> Plan:
    goal = int((threshold or target) * policy.low_water)
    budget = Budget(target, 0, 0, target, goal, threshold or target, policy.low_water)
    read = PlanInputs(log.events, log.turn, COUNTER, now=now, used_at=used_at, cache=cache, outside_tokens=outside)
    return plan(read, budget, policy, state)


def stubbed_seqs(found: Plan) -> list[int]:
    return [stub.seq for stub in found.state.stubs]


def test_a_result_is_evicted_once_carrying_it_cost_as_much_as_a_rewrite() -> None:
    log = Log()
    log.user()
    first = log.round(tokens=1_000)  # may be evicted once the next result has arrived
    log.round(tokens=1_000)
    log.assistant(tokens=1)
    log.user(tokens=1)
    calls = 1
    while not stubbed_seqs(found := make_plan(log, economic_policy())):
        log.assistant(tokens=1)
        calls += 1
        log.user(tokens=1)
    behind = sum(e.tokens for e in log.events if e.seq > first)
    saves = 1_000 - 50
    assert 0.1 * saves * calls == pytest.approx(1.15 * (behind + 50), rel=0.1)
    assert stubbed_seqs(found) == [first]
    assert found.cause == "break_even"


def test_only_the_part_that_pays_off_is_evicted() -> None:
    log = Log()
    log.user()
    old = log.round(tokens=400)
    log.assistant(tokens=20_000)  # all of this would be written again
    new = log.round(tokens=5_000)
    log.round(tokens=10)
    for _ in range(8):
        log.assistant(tokens=1)
        log.user(tokens=1)
    assert stubbed_seqs(make_plan(log, economic_policy())) == [new]
    assert stubbed_seqs(make_plan(log, economic_policy(), now=300.0)) == [old, new]


def test_a_cold_cache_costs_nothing_more() -> None:
    log = Log()
    log.user()
    first = log.round(tokens=5_000)
    log.round(tokens=5_000)
    log.assistant(tokens=10)
    log.user()
    assert make_plan(log, economic_policy(), now=299.0).cause is None
    cold = make_plan(log, economic_policy(), now=300.0)
    assert (cold.cause, stubbed_seqs(cold)) == ("cold_cache", [first])
    assert make_plan(log, economic_policy(), used_at=None).cause is None  # the first call of a view
    assert make_plan(log, economic_policy(), now=None).cause is None
    never = replace(economic_policy(), economics=Economics(least_tokens=0, on_cold=False))
    assert make_plan(log, never, now=300.0).cause is None


def test_an_eviction_that_pays_off_immediately_does_not_wait() -> None:
    log = Log()
    log.user()
    first = log.round(tokens=5_000)
    log.round(tokens=400)  # not sent yet, so written in any case
    assert stubbed_seqs(make_plan(log, economic_policy(at_risk=0))) == [first]
    log.assistant(tokens=600)
    log.user()
    log.assistant()
    log.user()  # now the text after it has been sent as well, and would be written again
    assert first not in stubbed_seqs(make_plan(log, economic_policy(at_risk=0)))


def test_rewriting_is_paid_for_by_what_evictions_have_earned() -> None:
    log = Log()
    log.user()
    first = log.round(tokens=20_000)
    second = log.round(tokens=3_000)
    cold = make_plan(log, economic_policy(at_risk=0), now=300.0)
    assert cold.state.earned == pytest.approx(1.25 * cold.state.saved, rel=0.01)
    assert stubbed_seqs(cold) == [first]
    log.round(tokens=10)
    for _ in range(50):
        log.assistant(tokens=100)
        log.user(tokens=10)
    assert make_plan(log, economic_policy(at_risk=0)).cause is None  # the run may end here, with nothing earned
    assert make_plan(log, economic_policy()).cause == "break_even"
    paid = make_plan(log, economic_policy(at_risk=0), cold.state)
    assert stubbed_seqs(paid) == [first, second]
    assert paid.state.earned >= 0
    assert paid.state.earned_to == len(log.events)
    assert from_json(to_json(paid.state)) == paid.state


def test_a_share_of_the_bill_may_be_risked_before_anything_is_earned() -> None:
    log = Log()
    log.user()
    first = log.round(tokens=20_000)
    log.round(tokens=2_000)
    for _ in range(8):
        log.assistant(tokens=100)
        log.user(tokens=10)
    assert make_plan(log, economic_policy(at_risk=0)).cause is None
    found = make_plan(log, economic_policy(at_risk=0.03))
    assert (found.cause, stubbed_seqs(found)) == ("break_even", [first])
    assert -0.03 * 1.25 * 25_000 - 0.03 * 0.1 * 25_000 * 10 < found.state.earned < 0


def test_nothing_goes_that_would_leave_too_little_to_be_cached() -> None:
    log = Log()
    log.user()
    first = log.round(tokens=3_000)
    log.round(tokens=1_000)
    log.assistant(tokens=10)
    log.user()
    small = replace(FIVE_MINUTES, minimum_tokens=2_000)
    assert make_plan(log, economic_policy(at_risk=0), now=300.0, cache=small).cause is None
    assert stubbed_seqs(make_plan(log, economic_policy(at_risk=0), now=300.0, cache=small, outside=1_500)) == [first]
    assert stubbed_seqs(make_plan(log, economic_policy(at_risk=0), now=300.0, target=2_500, cache=small)) == [first]


def test_an_answer_of_several_messages_is_one_call() -> None:
    accounts = []
    for texts in (1, 3):
        log = Log()
        log.user()
        log.round(tokens=20_000)
        log.round(tokens=400)
        log.assistant()
        log.user()
        cold = make_plan(log, economic_policy(at_risk=0), now=300.0)
        for _ in range(5):
            for _ in range(texts):
                log.assistant(tokens=30 // texts)
            log.user(tokens=10)
        later = make_plan(log, economic_policy(at_risk=0), cold.state).context
        accounts.append((earnings_so_far(later, cold.state, FIVE_MINUTES), len(later.rounds.seqs)))
    assert accounts[0] == accounts[1]


def test_a_result_that_the_model_has_not_seen_stays() -> None:
    log = Log()
    log.user()
    calls = [log.call() for _ in range(4)]
    for call in calls:
        log.result(call, 5_000)
    assert make_plan(log, economic_policy(at_risk=0), now=300.0).cause is None
    log.assistant()
    log.user()
    assert len(stubbed_seqs(make_plan(log, economic_policy(at_risk=0), now=300.0))) == 3


def test_a_small_saving_opens_no_epoch() -> None:
    log = Log()
    log.user()
    log.round(tokens=1_000)
    log.round(tokens=1_000)
    assert make_plan(log, economic_policy(least=2_000), now=300.0).cause is None
    log.round(tokens=2_000)
    assert len(stubbed_seqs(make_plan(log, economic_policy(least=1_500), now=300.0))) == 2


def test_a_new_system_prompt_rewrites_everything_anyway() -> None:
    log = Log()
    log.system()
    log.user()
    first = log.round(tokens=5_000)
    log.round(tokens=5_000)
    before = make_plan(log, economic_policy(), used_at=None)
    assert stubbed_seqs(before) == []
    log.system()
    assert stubbed_seqs(make_plan(log, economic_policy(), before.state)) == [first]


def test_results_that_a_view_never_carried_cost_it_nothing() -> None:
    log = Log()
    log.user()
    for _ in range(20):
        log.round(tokens=2_000)
    began = replace(START, began=len(log.events))
    assert make_plan(log, economic_policy(), began).cause is None
    assert make_plan(log, economic_policy(), START).cause == "break_even"


def test_under_pressure_small_results_and_listings_are_evicted_last() -> None:
    log = Log()
    log.user()
    listing = " ".join(f"src/module_{n}/file_{n}.py" for n in range(60))
    log.round(tokens=199)
    small = log.round(tokens=200)
    dense = log.result(log.call(), 700, body={"content": listing})
    large = log.round(tokens=4_000)
    log.round(tokens=100)
    rules = Retention(keep_last=1, identifiers=0.0, superseded=False)
    some = make_plan(log, economic_policy(rules=rules), target=5_000)
    assert (some.cause, stubbed_seqs(some)) == ("budget", [large])
    more = make_plan(log, economic_policy(rules=rules), target=1_700)
    assert stubbed_seqs(more) == [small, dense, large]


def test_a_result_of_which_a_stub_saves_less_than_half_stays() -> None:
    log = Log()
    log.user()
    log.round(tokens=99)
    half = log.round(tokens=100)
    large = log.round(tokens=4_000)
    log.round(tokens=100)
    rules = Retention(keep_last=1, identifiers=0.0, superseded=False, min_tokens=0)
    assert stubbed_seqs(make_plan(log, economic_policy(rules=rules), target=3_000)) == [half, large]


def test_a_stub_keeps_the_names_that_are_seen_nowhere_else() -> None:
    log = Log()
    log.user(body={"content": "look at app/known.py"})
    text = "app/known.py app/unknown.py\ndef find_the_answer(): ...\n" + "filler words only " * 200
    first = log.result(log.call(), 1_200, body={"content": text})
    log.round(tokens=1_000)
    rules = Retention(keep_last=1, superseded=False)
    stub = make_plan(log, economic_policy(rules=rules), now=300.0).state.stubs[0]
    assert (stub.seq, stub.keeps) == (first, ("app/unknown.py", "find_the_answer"))


def test_the_newer_of_two_evicted_results_keeps_a_name() -> None:
    log = Log()
    log.user()
    text = "see app/shared_name.py " + "filler words only " * 200
    log.result(log.call(), 1_200, body={"content": text})
    second = log.result(log.call(), 1_200, body={"content": text})
    log.round(tokens=1_000)
    stubs = make_plan(log, economic_policy(rules=Retention(keep_last=1, superseded=False)), now=300.0).state.stubs
    assert {stub.seq: stub.keeps for stub in stubs}[second] == ("app/shared_name.py",)
    assert [stub.keeps for stub in stubs if stub.seq != second] == [()]


def test_a_superseded_read_is_evicted_although_it_is_recent() -> None:
    log = Log()
    log.user()
    whole = {"arguments": {"path": "app/a.py"}}
    part = {"arguments": {"path": "app/a.py", "offset": 10}}
    again = log.result(log.call(body=part), 1_000)
    other = log.result(log.call(body={"arguments": {"path": "app/b.py"}}), 1_000)
    last = log.result(log.call(body=whole), 1_000)
    found = make_plan(log, economic_policy(rules=Retention(keep_last=8)), now=300.0)
    assert stubbed_seqs(found) == [again]
    assert found.state.stubs[0].reason == "superseded"
    assert not {other, last} & set(stubbed_seqs(found))


def test_long_arguments_of_old_calls_are_shortened_and_stay_an_object() -> None:
    log = Log()
    log.user()
    call = log.call(tokens=2_000, body={"arguments": {"path": "a.py", "content": "line\n" * 1_000}})
    log.result(call, 20)
    log.round(tokens=1_000)
    found = make_plan(log, economic_policy(rules=Retention(keep_last=1)), now=300.0)
    item = next(i for i in found.context.items if i.event.seq == call)
    shown = item.block().arguments
    assert isinstance(shown, dict)
    assert shown["path"] == "a.py"
    assert f"recall them with seq {call}" in shown["content"]
    assert item.tokens < 200


def test_pinned_never_evicted_and_open_ones_stay() -> None:
    log = Log()
    log.user()
    log.result(log.call(), 5_000, pinned=True)
    log.result(log.call("plan"), 5_000)
    log.call(tokens=3_000, body={"arguments": {"text": "word " * 3_000}})
    log.round(tokens=1_000)
    rules = Retention(keep_last=1, never_evict=("plan",))
    assert make_plan(log, economic_policy(rules=rules), now=300.0).cause is None


def test_a_session_pinned_above_its_threshold_opens_few_epochs() -> None:
    log = Log()
    log.user(tokens=9_000)  # must stay, and takes nearly all of the threshold
    policy = economic_policy(factor=100.0)
    state, epochs, evicted, stalls = START, 0, 0, 0
    for number in range(200):
        log.round(tokens=300)
        found = make_plan(log, policy, state, target=100_000, threshold=10_000)
        stalls += found.stalled is not None
        size = f"the context's {found.context.tokens} tokens are above the trigger of 10000"
        assert found.stalled is None or found.stalled.endswith(f" tokens, and {size}"), number
        if found.cause is not None:
            epochs += 1
            state = found.state
            evicted = sum(stub.saved for stub in state.stubs)
        assert (found.stalled is None) or found.context.tokens > 10_000, number
    assert stalls
    assert 0 < epochs <= 2 + (evicted // 300).bit_length()


def test_fixed_parts_above_the_threshold_stall_with_a_reason() -> None:
    log = Log()
    log.system(tokens=12_000)
    log.user()
    first = make_plan(log, economic_policy(), target=100_000, threshold=10_000)
    again = make_plan(log, economic_policy(), first.state, target=100_000, threshold=10_000)
    assert again.cause is None
    size = again.context.tokens
    assert (
        again.stalled == f"no other eviction is allowed, and the context's {size} tokens are above the trigger of 10000"
    )


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(200, 20_000), st.lists(st.integers(1, 2_000), min_size=1, max_size=60))
def test_never_twice_as_dear_as_carrying_on_or_as_evicting_later(size: int, grows: list[int]) -> None:
    """One result may be evicted, and each of the calls appends something after it."""
    log = Log()
    log.user(tokens=1)
    log.round(tokens=size)
    log.round(tokens=1)
    carried, rewrites, evicted_at, state = [], [], None, START
    for number, added in enumerate(grows):
        log.assistant(tokens=added)
        found = make_plan(log, economic_policy(), state)
        if found.cause == "break_even" and evicted_at is None:
            evicted_at, state = number, found.state
        carried.append(0.1 * next((s.tokens for s in found.state.stubs), size))
        rewrites.append(1.15 * sum(e.tokens for e in log.events[3:-1]))  # the last was not sent yet
        log.user(tokens=1)
    never = 0.1 * size * len(grows)
    if evicted_at is None:
        assert sum(carried) == pytest.approx(never)
        return
    paid = sum(carried) + rewrites[evicted_at]
    stub = min(carried)
    later = [0.1 * size * k + rewrites[k] + stub * (len(grows) - k) for k in range(evicted_at, len(grows))]
    slack = 0.2 * size  # a call's carrying cost may fall between the two, and a stub's size is estimated
    assert paid <= 2 * min([never, *later]) + slack


def test_strict_mode_asks_neither_clock_nor_price() -> None:
    log = Log()
    log.user()
    first = log.round(tokens=500)
    log.round(tokens=500)
    strict = Policy(evict="every_assembly", retention=RULES)
    assert stubbed_seqs(make_plan(log, strict)) == [first]


def test_evicting_only_on_a_cold_cache_waits_for_it_or_for_pressure() -> None:
    log = Log()
    log.user()
    first = log.round(tokens=500)
    log.round(tokens=500)
    patient = Policy(evict="on_cache_expiry", retention=RULES)
    assert make_plan(log, patient).cause is None
    assert stubbed_seqs(make_plan(log, patient, now=300.0)) == [first]
    assert stubbed_seqs(make_plan(log, patient, target=700)) == [first]
