"""Cut points: the computed vectors of the published designs, and their rules.

`s0_08` in a test's name is row S0.8 of docs/conformance.md. H in a comment is a header, U a user's message, A the
assistant's, T a tool result; the number is its tokens.
"""

import pytest

from app.core.log.events import EventType
from app.core.plan.state import cuts
from app.core.plan.state.context import Context
from app.core.plan.state.cuts import (
    ALWAYS,
    CutPoint,
    back,
    choose,
    find_cut,
    forward,
    stop_by_count,
    stop_by_tokens,
    stop_by_turns,
)
from app.core.plan.state.frontier import START
from app.core.plan.state.projection import project
from app.core.policy.groups import Cut
from app.core.policy.policy import Policy
from app.core.tokens.budget import budget_for
from tests.unit.builders import COUNTER, Log

ROOMY = budget_for(Policy(reserve_tokens=0), 100_000, 0.0)


def context_of(log: Log) -> Context:
    return project(log.events, START, COUNTER, turn=log.turn)


# H2 U10 A10 | H2 U10 call5 result40 A10; everything but the result is a candidate.
TIMELINE = (2, 10, 10, 2, 10, 5, 40, 10)
TIMELINE_TURNS = (1, 1, 1, 2, 2, 2, 2, 2)
CANDIDATES = (0, 1, 2, 3, 4, 5, 7)
TIMELINE_STARTS = (0, 1, 3, 4)


@pytest.mark.parametrize(
    ("keep", "cut", "split"),
    [
        (10, 7, 2),
        (50, 7, 2),
        (55, 5, 2),
        (65, 4, None),
        (67, 3, None),
        (79, 1, None),
        (1000, 0, None),
    ],
)
def test_s0_08_vectors(keep: int, cut: int, split: int | None) -> None:
    index = forward(stop_by_tokens(TIMELINE, keep), CANDIDATES)
    assert index == cut
    point = choose(index, TIMELINE_TURNS, "prefix", 2, TIMELINE_STARTS)
    assert point == (CutPoint(cut, split) if cut else None)


def test_s0_08_the_cut_backs_up_onto_what_is_no_message() -> None:
    """H U A [system message] H U with keep 12: the previous turn is split."""
    index = forward(stop_by_tokens((2, 10, 10, 5, 2, 10), 12), (0, 1, 2, 4, 5), bridges={3})
    assert choose(index, (1, 1, 1, 1, 2, 2), "prefix", 2, (0, 1, 4, 5)) == CutPoint(3, 1)


def test_s0_09_a_turn_starts_at_its_first_item_and_at_its_users_message() -> None:
    log = Log()
    log.turn = 1
    log.add(EventType.ANNOUNCE, 2)
    log.add(EventType.USER_MESSAGE, 10)
    log.assistant()
    log.add(EventType.USER_MESSAGE, 10)  # in the running turn
    log.user()
    assert cuts.turn_starts(context_of(log)) == {0, 1, 4}
    kept = [find_cut(context_of(log), ROOMY, Cut(keep_messages=n, split_turn="prefix")) for n in (1, 2, 3, 4)]
    assert kept == [CutPoint(4, None), CutPoint(3, 1), CutPoint(2, 1), CutPoint(1, None)]


@pytest.mark.parametrize(
    ("keep", "point"),
    [
        (10, CutPoint(5, 2)),
        (50, CutPoint(5, 2)),
        (55, CutPoint(3, 2)),
        (65, CutPoint(2, None)),
        (66, CutPoint(1, 1)),
        (1000, None),
    ],
)
def test_s0_08_in_a_log(keep: int, point: CutPoint | None) -> None:
    """The vectors hold without the headers, which are bookkeeping here."""
    log = Log()
    log.user(10)
    log.assistant(10)
    log.user(10)
    log.result(log.call(tokens=5), 40)
    log.assistant(10)
    assert find_cut(context_of(log), ROOMY, Cut(keep_tokens=keep, lean="forward", split_turn="prefix")) == point


# U10 A5 T50 A10 U10 A10 T100 A10
TASK = (10, 5, 50, 10, 10, 10, 100, 10)
NOT_RESULTS = (0, 1, 3, 4, 5, 7)


@pytest.mark.parametrize(("keep", "cut"), [(10, 7), (11, 5), (121, 4), (200, 0)])
def test_s4_08_vectors(keep: int, cut: int) -> None:
    assert back(stop_by_tokens(TASK, keep), NOT_RESULTS) == cut


@pytest.mark.parametrize(("keep", "cut"), [(10, 7), (11, 5), (121, 4), (200, None)])
def test_s4_08_in_a_log(keep: int, cut: int | None) -> None:
    log = Log()
    for call, result in ((5, 50), (10, 100)):
        log.user(10)
        log.result(log.call(tokens=call), result)
        log.assistant(10)
    point = find_cut(context_of(log), ROOMY, Cut(keep_tokens=keep, lean="back", split_turn="prefix"))
    assert (point.index if point else None) == cut


@pytest.mark.parametrize(("lean", "cut"), [("back", 1), ("forward", 5)])
def test_s4_08_of_two_calls_at_once_neither_loses_its_result(lean: str, cut: int) -> None:
    """The original may cut at the second call, and separates the first from its result. Here pairing (I3) wins."""
    log = Log()
    log.user(10)
    one, two = log.call(tokens=10), log.call(tokens=10)
    log.result(one, 10)
    log.result(two, 10)
    log.assistant(10)
    point = find_cut(context_of(log), ROOMY, Cut(keep_tokens=40, lean=lean, split_turn="prefix"))
    assert point == CutPoint(cut, 1)


def test_s4_08_when_only_results_lead_it_moves_forward() -> None:
    assert back(stop_by_tokens((50, 50, 10, 10), 110), (2, 3)) == 2


@pytest.mark.parametrize(("count", "keep", "stop"), [(10, 5, 5), (3, 5, None), (5, 5, None)])
def test_s3_02_by_messages(count: int, keep: int, stop: int | None) -> None:
    assert stop_by_count(count, keep) == stop


def test_s2_10_by_turns() -> None:
    assert stop_by_turns((1, 1, 2, 2, 3, 3), 2) == 2
    assert stop_by_turns((1, 1, 2), 2) is None


def test_s0_05_results_count_and_are_never_the_cut() -> None:
    log = Log()
    log.user()
    call = log.call()
    log.result(call, 500)
    log.assistant()
    context = context_of(log)
    assert cuts.speakers(context) == {0, 1, 3}
    assert stop_by_tokens([item.tokens for item in context.items], 300) == 2


def test_s0_04_candidates_are_who_speaks() -> None:
    log = Log()
    log.user()
    log.assistant()
    log.add(EventType.SYSTEM_MESSAGE, 5)
    log.add(EventType.AGENT_NOTE, 5, author="scout")
    log.add(EventType.AGENT_NOTE, 5, author="system")
    assert cuts.speakers(context_of(log)) == {0, 1, 3}


def test_s3_02_a_call_and_its_results_stay_together() -> None:
    log = Log()
    log.user()
    one, two = log.call(), log.call()
    log.result(two)
    log.result(one)
    log.assistant()
    assert cuts.pairing(context_of(log)) == {0, 1, 5}


def test_reasoning_stays_with_what_follows_it() -> None:
    log = Log()
    log.user()
    log.assistant(body={"content": [{"type": "thinking", "thinking": "hm", "signature": "s"}]})
    log.assistant()
    log.user()
    assert cuts.reasoning(context_of(log)) == {0, 1, 3}


def test_open_calls_and_pins_hold_their_rounds_together() -> None:
    log = Log()
    log.user()
    log.call()
    log.call()
    log.user()
    log.result(log.call(), pinned=True)
    context = context_of(log)
    assert cuts.pairing(context) == {0, 1, 3, 4}
    assert cuts.turn_starts(context) == {0, 3}
    assert cuts.legal(context, (*ALWAYS, cuts.turn_starts)) == (0, 3)


@pytest.mark.parametrize(("split_turn", "cut"), [("prefix", 5), ("protect_current", 4), ("advance", 4)])
def test_s0_29_what_becomes_of_a_split_turn(split_turn: str, cut: int) -> None:
    turns = (1, 1, 2, 2, 3, 3)
    split = 3 if split_turn == "prefix" else None
    assert choose(5, turns, split_turn, 3, (0, 2, 4)) == CutPoint(cut, split)


def test_s0_29_a_cut_inside_an_older_turn_advances_to_the_next() -> None:
    turns = (1, 1, 2, 2, 3, 3)
    assert choose(1, turns, "advance", 3, (0, 2, 4)) == CutPoint(2, None)
    assert choose(3, turns, "protect_current", 3, (0, 2, 4)) == CutPoint(3, 2)
    assert choose(1, (1, 1, 1), "advance", 1, (0,)) is None


def test_where_a_turn_starts_inside_a_round_it_is_not_cut_there() -> None:
    # a late result: call, user, result, assistant
    turns = (1, 2, 2, 2)
    assert choose(3, turns, "prefix", 2, (0,)) == CutPoint(3, 2)
    assert choose(3, turns, "protect_current", 2, (0,)) is None


def test_s0_06_what_is_kept_is_raised_to_the_newest_turns() -> None:
    log = Log()
    for _ in range(20):
        log.user(tokens=100)
    few = Cut(keep_ratio=0.1, lean="forward", split_turn="prefix")
    raised = Cut(keep_ratio=0.1, keep_recent_turns=6, lean="forward", split_turn="prefix")
    budget = budget_for(Policy(reserve_tokens=0), 3_000, 0.0)
    assert find_cut(context_of(log), budget, few) == CutPoint(17, None)
    assert find_cut(context_of(log), budget, raised) == CutPoint(14, None)


def test_s4_09_nothing_to_cut() -> None:
    log = Log()
    assert find_cut(context_of(log), ROOMY, Cut(keep_tokens=1_000)) is None
    log.user()
    log.assistant()
    assert find_cut(context_of(log), ROOMY, Cut(keep_tokens=1_000)) is None
    assert find_cut(context_of(log), ROOMY, Cut()) is None
