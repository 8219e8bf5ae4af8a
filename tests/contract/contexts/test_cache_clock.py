"""The part of a context that the provider's cache is expected to hold, and the time at which it expires."""

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

NOW = datetime(2031, 1, 1, tzinfo=UTC)
EVENTS = [
    {"type": "user.message", "content": "word " * 4_000},
    {"type": "assistant.message", "content": "Yes."},
    {"type": "user.message", "content": "Go on."},
]


async def context(client: httpx.AsyncClient, **asked: Any) -> dict[str, Any]:
    """Append the events to a session, and return its context with a given clock."""
    await client.post("/v1/sessions/s/events", json={"events": EVENTS})
    answer = await client.post("/v1/sessions/s/context", json={"now": NOW.isoformat(), **asked})
    assert answer.status_code == 200, answer.text
    made: dict[str, Any] = answer.json()
    return made


@pytest.mark.wing("audit")
@pytest.mark.parametrize(
    ("asked", "seconds"),
    [
        ({"format": "anthropic", "model": "claude-sonnet-4-5"}, 300),
        ({"format": "anthropic", "model": "claude-sonnet-4-5", "policy": {"cache": {"ttl_seconds": 3600}}}, 3_600),
        ({"format": "openai", "model": "gpt-5"}, 600),
        ({"format": "openai", "model": "home-made", "policy": {"cache": {"ttl_seconds": 60}}}, 60),
    ],
)
async def test_a_context_says_until_when_it_is_cached(
    client: httpx.AsyncClient, asked: dict[str, Any], seconds: int
) -> None:
    made = await context(client, **asked)
    cache = made["cache"]
    assert datetime.fromisoformat(cache["expires_at"]) == NOW + timedelta(seconds=seconds)
    assert 0.9 * cache["prefix_tokens"] < cache["tokens"] <= cache["prefix_tokens"]
    again = (await client.get(f"/v1/sessions/s/calls/{made['call_id']}/context")).json()
    record = (await client.get(f"/v1/sessions/s/calls/{made['call_id']}")).json()
    assert again["cache"] == record["cache"] == cache


@pytest.mark.parametrize(
    "asked",
    [
        {"format": "openai", "model": "home-made"},
        {"format": "openai", "model": "claude-sonnet-4-5"},  # Anthropic caches only what has a marker
        {"format": "anthropic", "model": "claude-sonnet-4-5", "policy": {"markers": "none"}},
        {"format": "openai", "model": "gpt-5", "policy": {"cache": {"minimum_tokens": 50_000}}},
    ],
)
async def test_a_context_that_is_not_cached_has_no_such_time(client: httpx.AsyncClient, asked: dict[str, Any]) -> None:
    cache = (await context(client, **asked))["cache"]
    assert (cache["tokens"], cache["expires_at"]) == (0, None)


async def test_a_repeated_request_has_the_time_of_the_first(client: httpx.AsyncClient) -> None:
    await client.post("/v1/sessions/s/events", json={"events": EVENTS})
    asked = {"format": "openai", "model": "gpt-5"}
    bodies = [
        (await client.post("/v1/sessions/s/context", json=asked, headers={"Idempotency-Key": "one"})).json()
        for _ in range(2)
    ]
    assert bodies[0]["cache"] == bodies[1]["cache"] and bodies[0]["cache"]["expires_at"]
