"""Two API processes on one database: what one holds in memory never hides what came through the other."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from app.settings import Settings
from tests.conftest import serving

SESSION = "/v1/sessions/shared"
ROOM = {"format": "anthropic", "model": "claude-sonnet-4-5", "max_tokens": 60_000}


@pytest.fixture
async def servers(database_url: str) -> AsyncIterator[tuple[httpx.AsyncClient, httpx.AsyncClient]]:
    """A client of each."""
    async with (
        serving(Settings(), database_url) as one,
        serving(Settings(), database_url) as other,
        httpx.AsyncClient(base_url=one) as first,
        httpx.AsyncClient(base_url=other) as second,
    ):
        yield first, second


async def say(client: httpx.AsyncClient, text: str) -> int:
    answer = await client.post(f"{SESSION}/events", json={"events": [{"type": "user.message", "content": text}]})
    answer.raise_for_status()
    return int(answer.json()["head"])


async def context(client: httpx.AsyncClient, **asked: Any) -> dict[str, Any]:
    answer = await client.get(f"{SESSION}/context", params=ROOM | asked)
    answer.raise_for_status()
    found: dict[str, Any] = answer.json()
    return found


async def test_a_context_shows_what_was_appended_through_either(
    servers: tuple[httpx.AsyncClient, httpx.AsyncClient],
) -> None:
    for number in range(12):
        head = await say(servers[number % 2], f"number {number}")
        for asked in servers if number % 3 else servers[:1]:
            found = await context(asked)
            assert found["head"] == head
            assert f"number {number}" in str(found["request"]["messages"][-1])
    same = [(await context(server))["sha256"] for server in servers]
    assert same[0] == same[1]


async def test_an_epoch_opened_by_one_is_the_others_next(
    servers: tuple[httpx.AsyncClient, httpx.AsyncClient],
) -> None:
    await say(servers[0], "hello")
    first = await context(servers[0])
    await context(servers[1], max_tokens=50_000)
    found = await context(servers[0], max_tokens=50_000)
    assert (first["epoch"], found["epoch"]) == (1, 2)


async def test_all_are_answered_who_ask_at_once_for_one_view_and_must_each_open_an_epoch(
    servers: tuple[httpx.AsyncClient, httpx.AsyncClient],
) -> None:
    await say(servers[0], "hello")
    windows = [50_000 + number for number in range(32)]
    asking = [context(servers[number % 2], max_tokens=window) for number, window in enumerate(windows)]
    found = await asyncio.gather(*asking)
    assert sorted(one["epoch"] for one in found) == list(range(1, 33))


async def test_breakpoints_build_on_the_last_call_of_either(
    servers: tuple[httpx.AsyncClient, httpx.AsyncClient],
) -> None:
    await say(servers[0], "a long beginning " * 2_000)
    await context(servers[0])
    head = await say(servers[0], "a long middle " * 2_000)
    assert (await context(servers[1]))["cache"]["breakpoints"][-1]["seq"] == head
    head = await say(servers[0], "the end")
    points = [point["seq"] for point in (await context(servers[0]))["cache"]["breakpoints"]]
    assert points[-2:] == [head - 1, head]


async def test_a_session_erased_through_one_is_gone_for_the_other(
    servers: tuple[httpx.AsyncClient, httpx.AsyncClient],
) -> None:
    await say(servers[0], "secret")
    await context(servers[0])
    (await servers[1].delete(SESSION)).raise_for_status()
    assert (await servers[0].get(f"{SESSION}/context", params=ROOM)).status_code == 404
    await say(servers[1], "anew")
    assert "secret" not in str((await context(servers[0]))["request"])
