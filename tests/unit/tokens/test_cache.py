"""The table of providers' caches, and its changes by an operator's table and by a policy."""

from dataclasses import replace
from typing import Any

import pytest

from app.core.errors import InvalidPolicy
from app.core.policy.groups import CacheRules
from app.core.tokens.models import (
    ANTHROPIC,
    ANTHROPIC_HOUR,
    OPENAI,
    OPENAI_PAID,
    TABLE,
    UNKNOWN_CACHE,
    CachedPrefix,
    CacheProfile,
    cache_profile,
    cached_prefix,
    is_known_cache,
    model_name,
    parse_table,
)


@pytest.mark.parametrize(
    ("model", "minimum_tokens", "read_price"),
    [
        ("claude-sonnet-4-5-20250929", 1_024, 0.1),
        ("claude-opus-4-1", 1_024, 0.1),
        ("claude-opus-4-20250514", 1_024, 0.1),
        ("claude-opus-4-5", 4_096, 0.1),
        ("claude-opus-4-6", 4_096, 0.1),
        ("claude-opus-4-7", 2_048, 0.1),
        ("claude-opus-4-8", 1_024, 0.1),
        ("claude-opus-5", 512, 0.1),
        ("claude-opus-5-5", 512, 0.05),
        ("claude-sonnet-5", 1_024, 0.1),
        ("claude-sonnet-5-5", 512, 0.05),
        ("claude-fable-5-1", 512, 0.025),
        ("claude-mythos-5", 512, 0.1),
        ("claude-mythos-preview", 2_048, 0.1),
        ("claude-haiku-4-5", 4_096, 0.1),
        ("claude-haiku-5-5", 512, 0.1),
        ("claude-3-5-haiku-latest", 2_048, 0.1),
        ("anthropic/claude-opus-4.5", 4_096, 0.1),
        ("gpt-4o-mini", 1_024, 0.5),
        ("gpt-4.1-nano", 1_024, 0.25),
        ("gpt-5-mini", 1_024, 0.1),
        ("o3-mini", 1_024, 0.5),
        ("o4-mini", 1_024, 0.25),
        ("gpt-6.1-sol", 1_024, 0.05),
    ],
)
def test_the_built_in_table(model: str, minimum_tokens: int, read_price: float) -> None:
    profile = cache_profile(model)
    assert (profile.minimum_tokens, profile.read_price) == (minimum_tokens, read_price)


def test_the_ways_of_caching() -> None:
    assert cache_profile("claude-sonnet-4-5") == ANTHROPIC == CacheProfile(0.1, 1.25, 300, 1_024, 20, 4, 1)
    assert cache_profile("gpt-5.5") == OPENAI == CacheProfile(0.1, 1.0, 600, 1_024, None, 0, 128)
    assert cache_profile("gpt-5.6") == OPENAI_PAID == CacheProfile(0.1, 1.25, 1_800, 1_024, None, 4, 128)
    assert CacheProfile(0.1, 2.0, 3_600, 1_024, 20, 4, 1) == ANTHROPIC_HOUR


@pytest.mark.parametrize("name", TABLE)
def test_every_row_makes_sense(name: str) -> None:
    profile = TABLE[name]
    assert name == model_name(name)
    assert 0 < profile.read_price < profile.write_price
    assert (profile.lookback_blocks is None) == (not name.startswith("claude"))


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("GPT-4o", "gpt-4o"),
        ("openai/gpt-4o", "gpt-4o"),
        ("us.anthropic.claude-haiku-4-5-v1:0", "claude-haiku-4-5-v1:0"),
        ("openrouter/anthropic/claude-opus-4.5", "claude-opus-4-5"),
        ("claude-haiku-4-5@20251001", "claude-haiku-4-5@20251001"),
    ],
)
def test_a_routers_prefix_is_no_part_of_the_name(given: str, name: str) -> None:
    assert model_name(given) == name
    assert cache_profile(given) == cache_profile(name)


@pytest.mark.parametrize("model", [None, "", "llama-4"])
def test_an_unknown_model_gets_the_callers_profile(model: str | None) -> None:
    assert cache_profile(model) == UNKNOWN_CACHE
    assert cache_profile(model, otherwise=ANTHROPIC) == ANTHROPIC


def test_a_policy_overrides_only_the_fields_it_sets() -> None:
    rules = CacheRules(ttl_seconds=3_600, write_price=2.0)
    assert cache_profile("claude-sonnet-4-5", rules) == ANTHROPIC_HOUR
    assert cache_profile("claude-sonnet-4-5", CacheRules()) == ANTHROPIC
    assert cache_profile("claude-sonnet-4-5", CacheRules(markers=0)).markers == 0


def test_a_row_applies_to_every_model_with_its_prefix() -> None:
    table = parse_table({"claude": {"write_price": 2, "ttl_seconds": 3_600}})
    assert cache_profile("claude-sonnet-4-5", table=table) == ANTHROPIC_HOUR
    haiku = cache_profile("claude-haiku-4-5", table=table)
    assert (haiku.write_price, haiku.ttl_seconds, haiku.minimum_tokens) == (2, 3_600, 4_096)
    assert cache_profile("gpt-5", table=table) == OPENAI


def test_a_longer_prefix_wins_whatever_the_order() -> None:
    rows = {"claude-haiku": {"ttl_seconds": 60}, "claude": {"ttl_seconds": 90, "markers": 2}}
    for given in (rows, dict(reversed(rows.items()))):
        table = parse_table(given)
        assert cache_profile("claude-haiku-4-5", table=table).ttl_seconds == 60
        assert cache_profile("claude-haiku-4-5", table=table).markers == 2
        assert cache_profile("claude-opus-4-1", table=table).ttl_seconds == 90


def test_a_new_models_row_starts_from_its_built_in_profile() -> None:
    table = parse_table({"Vendor/Llama": {"read_price": 0, "ttl_seconds": 60}, "claude-opus-9": {"markers": 8}})
    assert cache_profile("vendor/llama-4", table=table) == CacheProfile(0, 1.0, 60, 1_024, None, 0, 128)
    assert cache_profile("claude-opus-9-1", table=table).markers == 8
    assert cache_profile("claude-opus-9-1", table=table).lookback_blocks == 20


def test_no_rows_leave_the_table_as_it_is() -> None:
    assert parse_table({}) == TABLE
    assert parse_table({"gpt": {}}) == TABLE


def test_automatic_caching_can_be_configured() -> None:
    table = parse_table({"claude": {"lookback_blocks": None}})
    assert cache_profile("claude-opus-4-5", table=table).lookback_blocks is None


@pytest.mark.parametrize(
    ("document", "says"),
    [
        (None, "must be an object of model names"),
        ([], "must be an object of model names"),
        ({"claude": 1}, "claude: must be an object"),
        ({"": {}}, "'' is the beginning of no model's name"),
        ({"openai/": {}}, "'openai/' is the beginning of no model's name"),
        ({"claude": {"ttl": 1}}, "claude.ttl: unknown"),
        ({"claude": {"ttl_seconds": None}}, "claude.ttl_seconds: must be a whole number of 0 or more"),
        ({"claude": {"ttl_seconds": "300"}}, "claude.ttl_seconds: must be a whole number of 0 or more"),
        ({"claude": {"ttl_seconds": 1.5}}, "claude.ttl_seconds: must be a whole number of 0 or more"),
        ({"claude": {"ttl_seconds": True}}, "claude.ttl_seconds: must be a whole number of 0 or more"),
        ({"claude": {"ttl_seconds": -1}}, "claude.ttl_seconds: must be a whole number of 0 or more"),
        ({"claude": {"ttl_seconds": 2**31}}, "claude.ttl_seconds: must be a whole number of 0 or more"),
        ({"claude": {"lookback_blocks": 0}}, "claude.lookback_blocks: must be a whole number of 1 or more"),
        ({"gpt": {"step_tokens": 0}}, "gpt.step_tokens: must be a whole number of 1 or more"),
        ({"claude": {"read_price": float("inf")}}, "claude.read_price: must be a number from 0 to 100"),
        ({"claude": {"read_price": float("nan")}}, "claude.read_price: must be a number from 0 to 100"),
        ({"claude": {"write_price": 0.05}}, "claude: a read of claude must be cheaper than a write"),
        ({"gpt": {"write_price": 0.4}}, "gpt: a read of gpt-4o must be cheaper than a write"),
        ({"qwen": {"read_price": 1, "write_price": 1}}, "qwen: a read of qwen must be cheaper than a write"),
        ({"qwen": {"ttl_seconds": 0, "read_price": 2}}, "qwen: a read of qwen must be cheaper than a write"),
    ],
)
def test_a_bad_table_is_refused_by_the_place_at_fault(document: Any, says: str) -> None:
    with pytest.raises(InvalidPolicy) as refused:
        parse_table(document)
    assert refused.value.detail.startswith(says)
    assert refused.value.fields == {"knob": "cache_table"}


@pytest.mark.parametrize(
    ("profile", "tokens", "outside", "held"),
    [
        (ANTHROPIC, 1_024, 0, 1_024),
        (ANTHROPIC, 1_023, 0, 0),
        (ANTHROPIC, 24, 1_000, 24),  # what is sent before the request counts towards the provider's minimum
        (OPENAI, 1_200, 0, 1_152),  # whole steps of 128
        (OPENAI, 100, 1_100, 52),
        (OPENAI, 0, 2_048, 0),
        (replace(ANTHROPIC, ttl_seconds=0), 5_000, 0, 0),
    ],
)
def test_the_cached_prefix_is_as_long_as_the_provider_caches(
    profile: CacheProfile, tokens: int, outside: int, held: int
) -> None:
    expected = CachedPrefix(held, 50.0 + profile.ttl_seconds) if held else CachedPrefix()
    assert cached_prefix(profile, tokens, outside, 50.0) == expected


def test_a_cache_is_known_by_its_model_a_policy_or_its_provider() -> None:
    assert is_known_cache("openai/gpt-5") and is_known_cache("my-llama", CacheRules(ttl_seconds=60))
    assert is_known_cache("my-llama", otherwise=ANTHROPIC)
    assert not is_known_cache("my-llama") and not is_known_cache(None, CacheRules(read_price=0.2))
