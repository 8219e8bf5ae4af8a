"""Policies: every knob checked, every refusal names it."""

import pytest

from app.core.budget import budget_for
from app.core.errors import InvalidPolicy
from app.core.policy import DEFAULT, Policy, ToolRule, parse_policy


@pytest.mark.parametrize(
    ("document", "knob"),
    [
        ([], "policy"),
        ({"colour": 1}, "colour"),
        ({"window_tokens": 0}, "window_tokens"),
        ({"window_tokens": True}, "window_tokens"),
        ({"reserve_tokens": -1}, "reserve_tokens"),
        ({"window_tokens": 100, "reserve_tokens": 100}, "reserve_tokens"),
        ({"low_water": 0}, "low_water"),
        ({"soft_ratio": 1.5}, "soft_ratio"),
        ({"evict": "sometimes"}, "evict"),
        ({"retention": {"keep": 1}}, "retention.keep"),
        ({"retention": {"age_turns": 0}}, "retention.age_turns"),
        ({"retention": {"tools": {"read": {"keep": 1}}}}, "retention.tools.read.keep"),
        ({"retention": {"never_evict": "read"}}, "retention.never_evict"),
        ({"dialogue_window": {"turns": 0}}, "dialogue_window.turns"),
        ({"authors": [1]}, "authors"),
    ],
)
def test_nonsense_names_its_knob(document: object, knob: str) -> None:
    with pytest.raises(InvalidPolicy) as refused:
        parse_policy(document)
    assert refused.value.fields["knob"] == knob


def test_an_empty_document_is_the_default() -> None:
    assert parse_policy({}) == DEFAULT


def test_overrides_replace_both_rules_of_a_tool() -> None:
    policy = parse_policy({"retention": {"keep_last": 3, "tools": {"read": {"age_turns": 2}}, "never_evict": ["plan"]}})
    assert policy.retention.rule("read") == ToolRule(keep_last=None, age_turns=2)
    assert policy.retention.rule("other") == ToolRule(keep_last=3, age_turns=None)
    assert policy.retention.rule("plan") is None


def test_the_target_is_the_window_less_reserves_and_margin() -> None:
    budget = budget_for(Policy(), 10_000, 0.1)
    assert (budget.reserve, budget.target, budget.goal) == (1_000, 8_181, 5_726)
    assert budget_for(Policy(), 1_000_000, 0.0).reserve == 16_384
    assert budget_for(Policy(reserve_tokens=0, injection_reserve_tokens=4_000), 30_000, 0.0).target == 26_000
    with pytest.raises(InvalidPolicy):
        budget_for(Policy(reserve_tokens=500), 500, 0.0)
