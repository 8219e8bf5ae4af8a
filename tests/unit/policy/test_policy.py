"""Policies: every knob is described and checked, and every refusal names its knob."""

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.errors import InvalidPolicy
from app.core.policy.groups import Retention, ToolRule, Trigger
from app.core.policy.policy import DEFAULT, DOCUMENTS, PRESETS, Policy, json_schema, parse_policy
from app.core.tokens.budget import budget_for


@pytest.mark.parametrize(
    ("document", "knob"),
    [
        ([], "policy"),
        (None, "policy"),
        ({"colour": 1}, "colour"),
        ({"window_tokens": 0}, "window_tokens"),
        ({"window_tokens": True}, "window_tokens"),
        ({"window_tokens": 2**31}, "window_tokens"),
        ({"window_tokens": 5.0}, "window_tokens"),
        ({"reserve_tokens": -1}, "reserve_tokens"),
        ({"window_tokens": 100, "reserve_tokens": 100}, "reserve_tokens"),
        ({"window_tokens": 100, "injection_reserve_tokens": 100}, "injection_reserve_tokens"),
        ({"injection_reserve_tokens": -1}, "injection_reserve_tokens"),
        ({"window_tokens": 100, "outside_tokens": 100}, "outside_tokens"),
        ({"estimator": "guess"}, "estimator"),
        ({"low_water": 0}, "low_water"),
        ({"low_water": float("nan")}, "low_water"),
        ({"soft_ratio": 1.5}, "soft_ratio"),
        ({"soft_ratio": True}, "soft_ratio"),
        ({"evict": "sometimes"}, "evict"),
        ({"markers": 4}, "markers"),
        ({"trigger": 0.8}, "trigger"),
        ({"trigger": {"ratio": 0}}, "trigger.ratio"),
        ({"trigger": {"reserve": "much"}}, "trigger.reserve"),
        ({"window_tokens": 1_000, "trigger": {"tokens": 2_000}}, "trigger.tokens"),
        ({"retention": {"keep": 1}}, "retention.keep"),
        ({"retention": {"age_turns": 0}}, "retention.age_turns"),
        ({"retention": {"superseded": 1}}, "retention.superseded"),
        ({"retention": {"tools": ["read"]}}, "retention.tools"),
        ({"retention": {"tools": {"read": {"keep": 1}}}}, "retention.tools.read.keep"),
        ({"retention": {"never_evict": "read"}}, "retention.never_evict"),
        ({"dialogue_window": {"turns": 0}}, "dialogue_window.turns"),
        ({"caps": {"tool_results": 2}}, "caps.tool_results"),
        ({"cut": {"split_turn": "half"}}, "cut.split_turn"),
        ({"cut": {"keep_turns": 1, "keep_tokens": 100}}, "cut.keep_turns"),
        ({"window_tokens": 1_000, "cut": {"keep_tokens": 1_001}}, "cut.keep_tokens"),
        ({"trigger": {"ratio": 0.5}, "cut": {"keep_ratio": 0.6}}, "cut.keep_ratio"),
        ({"ttl_pruning": {"ttl_seconds": 10}}, "ttl_pruning.buffer_seconds"),
        ({"ttl_pruning": {"keep_recent_turns": 1}}, "ttl_pruning.keep_recent_intact_turns"),
        ({"economics": {"factor": 101}}, "economics.factor"),
        ({"cache": {"read_price": 1.25, "write_price": 1.25}}, "cache.read_price"),
        ({"cache": {"ttl_seconds": 0, "read_price": 2, "write_price": 1}}, "cache.read_price"),
        ({"authors": [1]}, "authors"),
    ],
)
def test_nonsense_names_its_knob(document: object, knob: str) -> None:
    with pytest.raises(InvalidPolicy) as refused:
        parse_policy(document)
    assert refused.value.fields["knob"] == knob


def test_an_empty_document_is_the_default() -> None:
    assert parse_policy({}) == DEFAULT == Policy() == PRESETS["default"]
    assert (DEFAULT.evict, DEFAULT.low_water, DEFAULT.retention.keep_last) == ("economic", 0.7, 2)


def test_given_knobs_are_kept() -> None:
    policy = parse_policy(
        {
            "window_tokens": 50_000,
            "evict": "on_pressure",
            "trigger": {"ratio": 1, "reserve": "auto"},
            "retention": {"keep_last": None, "identifiers": 0, "never_evict": ["plan"]},
            "authors": [],
        }
    )
    assert policy == Policy(
        window_tokens=50_000,
        evict="on_pressure",
        trigger=Trigger(ratio=1.0, reserve="auto"),
        retention=Retention(keep_last=None, identifiers=0.0, never_evict=("plan",)),
        authors=(),
    )


def test_overrides_replace_both_rules_of_a_tool() -> None:
    policy = parse_policy(
        {"retention": {"keep_last": 3, "min_tokens": 50, "tools": {"read": {"age_turns": 2}}, "never_evict": ["plan"]}}
    )
    assert policy.retention.rule("read") == ToolRule(keep_last=None, age_turns=2, min_tokens=50)
    assert policy.retention.rule("other") == ToolRule(keep_last=3, age_turns=None, min_tokens=50)
    assert policy.retention.rule("plan") is None


def test_the_target_is_the_window_less_reserves_and_margin() -> None:
    budget = budget_for(Policy(), 10_000, 0.1)
    assert (budget.reserve, budget.target, budget.goal) == (1_000, 8_181, 5_726)
    assert budget_for(Policy(), 1_000_000, 0.0).reserve == 16_384
    assert budget_for(Policy(reserve_tokens=0, injection_reserve_tokens=4_000), 30_000, 0.0).target == 26_000
    with pytest.raises(InvalidPolicy):
        budget_for(Policy(reserve_tokens=500), 500, 0.0)


def leaves(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the knobs of a policy's schema by path, groups included."""
    for name, inner in schema["properties"].items():
        where = f"{path}.{name}" if path else name
        nested = inner if "properties" in inner else inner.get("additionalProperties")
        assert inner["description"].endswith("."), where
        if isinstance(nested, dict):
            assert nested["additionalProperties"] is False, where
            yield from leaves(nested, where)
        else:
            yield where, inner


def at(policy: object, path: str) -> object:
    for name in path.split("."):
        policy = getattr(policy, name)
    return policy


def test_every_knob_has_its_sentence_and_its_default() -> None:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    found = dict(leaves(schema))
    assert {"window_tokens", "trigger.reserve", "retention.tools.keep_last", "cache.lookback_blocks"} <= set(found)
    for path, knob in found.items():
        jsonschema.validate(knob["default"], knob)
        if not path.startswith("retention.tools."):
            default = at(DEFAULT, path)
            assert knob["default"] == (list(default) if isinstance(default, tuple) else default), path
    assert "In tokens." in found["window_tokens"]["description"]
    assert found["evict"]["enum"] == ["economic", "on_pressure", "on_cache_expiry", "every_assembly"]


def test_a_document_of_all_defaults_is_the_default() -> None:
    document: dict[str, Any] = {}
    for path, knob in leaves(json_schema()):
        *groups, name = path.split(".")
        if groups[-1:] != ["tools"]:
            inner = document
            for group in groups:
                inner = inner.setdefault(group, {})
            inner[name] = knob["default"]
    assert parse_policy(document) == DEFAULT


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_schema_accepts_the_presets(name: str) -> None:
    jsonschema.validate(DOCUMENTS[name], json_schema())
    assert parse_policy(json.loads(json.dumps(DOCUMENTS[name]))) == PRESETS[name]


VALUES = st.sampled_from([None, True, "auto", "tail", "economic", "prefix", "ceil4", 0, 1, 0.5, 7, 1.5, [], ["a"]])


@settings(deadline=None)
@given(st.data())
def test_the_schema_accepts_every_accepted_policy(data: st.DataObject) -> None:
    document: dict[str, Any] = {}
    knobs = [path for path, _ in leaves(json_schema())]
    for path in data.draw(st.lists(st.sampled_from(knobs), max_size=4)):
        *groups, name = path.replace("retention.tools.", "retention.tools.read.").split(".")
        inner = document
        for group in groups:
            inner = inner.setdefault(group, {})
        inner[name] = data.draw(VALUES)
    try:
        parse_policy(document)
    except InvalidPolicy:
        return
    jsonschema.validate(document, json_schema())


def test_a_provider_without_a_cache_can_be_stated() -> None:
    policy = parse_policy({"cache": {"ttl_seconds": 0, "read_price": 1, "write_price": 1}})
    assert (policy.cache.ttl_seconds, policy.cache.read_price, policy.cache.write_price) == (0, 1, 1)
