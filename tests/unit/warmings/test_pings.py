"""The rules of pings: the requests and caches that they are for, their times, and their limits."""

import json
from typing import Any

import pytest

from app.core.tokens.models import ANTHROPIC, ANTHROPIC_HOUR, CacheProfile
from app.core.wire.bodies import parse
from app.wings.warmings.pings import KeptCache, PingRules, PingsEnded, can_keep, can_ping, next_ping, ping_body

RULES = PingRules(short=False, idle_seconds=4 * 3600, spend_tokens=200_000)
HOUR = KeptCache(50_000, ANTHROPIC_HOUR, called_at=1_000.0, used_at=1_000.0)
MINUTES = KeptCache(50_000, ANTHROPIC, called_at=1_000.0, used_at=1_000.0)


def test_only_entries_of_an_hour_are_kept_unless_the_rules_include_short_ones() -> None:
    assert can_keep(ANTHROPIC_HOUR, 2_000, RULES)
    assert not can_keep(ANTHROPIC, 2_000, RULES)
    assert can_keep(ANTHROPIC, 2_000, PingRules(short=True, idle_seconds=1, spend_tokens=1))
    assert not can_keep(ANTHROPIC_HOUR, 0, RULES)


@pytest.mark.parametrize(
    ("call", "possible"),
    [
        ({}, True),
        (
            {"thinking": {"type": "adaptive"}, "tool_choice": {"type": "auto"}, "output_config": {"effort": "high"}},
            True,
        ),
        ({"thinking": {"type": "disabled"}}, True),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, False),
        ({"tool_choice": {"type": "any"}}, False),
        ({"tool_choice": {"type": "tool", "name": "read"}}, False),
        ({"output_config": {"format": {"type": "json_schema"}}}, False),
        ({"output_format": {"type": "json_schema"}}, False),
        ({"thread": {"type": "create"}}, False),
        ({"thinking": "nonsense", "tool_choice": None}, True),
    ],
)
def test_calls_that_the_provider_refuses_without_an_answer_are_not_pinged(call: dict[str, Any], possible: bool) -> None:
    assert can_ping(call) is possible


def test_a_ping_has_the_bytes_of_its_call_but_no_answer_and_no_stream() -> None:
    made = ping_body(parse(b'{"model":"m", "stream" : true,"max_tokens":100,"messages":[{"a": 1.0}], "x":"\\u00e9"}'))
    assert json.loads(made) == {"model": "m", "max_tokens": 0, "messages": [{"a": 1.0}], "x": "é"}
    assert b'[{"a": 1.0}]' in made
    assert b'"\\u00e9"' in made


def test_a_ping_comes_a_minute_before_an_hour_is_over_and_half_a_minute_before_five_minutes_are() -> None:
    assert next_ping(HOUR, RULES, 0) == 1_000 + 3_600 - 60
    assert next_ping(MINUTES, RULES, 0) == 1_000 + 300 - 30


def test_each_ping_moves_the_next_one_until_the_client_has_been_gone_for_too_long() -> None:
    cache, times = HOUR, []
    with pytest.raises(PingsEnded, match="gone"):
        while True:
            times.append(next_ping(cache, RULES, 0))
            cache = cache.after_ping(times[-1], cache.ping_price)
    assert times == [1_000 + n * 3_540 for n in (1, 2, 3, 4)]


def test_pings_end_before_they_cost_more_than_writing_the_cache_again() -> None:
    patient = PingRules(short=True, idle_seconds=10**9, spend_tokens=10**9)
    for cache, most in ((MINUTES, 11), (HOUR, 19)):  # (1.25 - 0.1) / 0.1, (2 - 0.1) / 0.1
        sent = 0
        with pytest.raises(PingsEnded, match="not-worthwhile"):
            while True:
                cache = cache.after_ping(next_ping(cache, patient, 0), cache.ping_price)
                sent += 1
        assert sent == most


def test_a_session_spends_no_more_than_its_limit() -> None:
    assert next_ping(HOUR, RULES, 195_000)
    with pytest.raises(PingsEnded, match="spent"):
        next_ping(HOUR, RULES, 195_001)


def test_a_cache_that_costs_as_much_to_write_as_to_read_is_not_kept() -> None:
    with pytest.raises(PingsEnded, match="not-worthwhile"):
        next_ping(KeptCache(5_000, CacheProfile(read_price=1.0, write_price=1.0), 0.0, 0.0), RULES, 0)
