"""Thresholds of a reduction, against the computed values of the published designs."""

import pytest

from app.core.errors import InvalidPolicy
from app.core.policy.groups import Trigger
from app.core.policy.policy import Policy
from app.core.tokens.budget import auto_keep, auto_reserve, budget_for, summary_tokens, threshold


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        (4_000, (2_048, 1_952, 1_638)),
        (8_000, (2_048, 4_096, 1_638)),
        (30_000, (7_500, 10_500, 6_000)),
        (200_000, (16_384, 20_000, 13_107)),
    ],
)
def test_s4_02_reserve_keep_and_summary_by_the_window(window: int, expected: tuple[int, int, int]) -> None:
    reserve = auto_reserve(window)
    assert (reserve, auto_keep(window), summary_tokens(reserve)) == expected


def test_s0_01_above_nine_tenths_and_not_at_it() -> None:
    assert threshold(Trigger(ratio=0.9), 200, 196) == 180


def test_s3_01_above_eight_tenths() -> None:
    assert threshold(Trigger(ratio=0.8), 1_000, 950) == 800


def test_s4_01_above_the_window_less_the_reserve() -> None:
    assert threshold(Trigger(reserve="auto"), 8_000, 8_000) == 5_952
    assert threshold(Trigger(reserve=1_000), 8_000, 8_000) == 7_000


def test_the_target_is_always_a_threshold_and_the_lowest_counts() -> None:
    assert threshold(Trigger(), 1_000, 700) == 700
    assert threshold(Trigger(ratio=0.9, tokens=300, reserve=500), 1_000, 700) == 300


def test_a_reserve_above_the_window_is_refused_by_name() -> None:
    with pytest.raises(InvalidPolicy) as refused:
        budget_for(Policy(trigger=Trigger(reserve=9_000)), 8_000, 0.0)
    assert refused.value.fields["knob"] == "trigger.reserve"


def test_reductions_aim_below_the_threshold_and_caps_are_shares_of_the_target() -> None:
    budget = budget_for(Policy(trigger=Trigger(tokens=1_000), reserve_tokens=0), 10_000, 0.0)
    assert (budget.target, budget.threshold, budget.goal) == (10_000, 1_000, 700)
    assert budget.cap("tool_results") == 10_000


def test_s4_02_the_smallest_windows_leave_room_too() -> None:
    assert (auto_reserve(1_500), auto_keep(1_500)) == (750, 750)
    assert threshold(Trigger(reserve="auto"), 1_500, 1_500) == 750
