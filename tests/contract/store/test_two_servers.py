"""Two API processes on one database: the cache of one never hides a change made through the other."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from app.store.engine import Database
from tests.conftest import Servers, serving
from tests.support.gateways import GatewayReader, settings
from tests.support.provider import Provider, ProviderReply
from tests.support.requesting import Loopback

SESSION = "/v1/sessions/shared"
ROOM = {"format": "anthropic", "model": "claude-sonnet-4-5", "max_tokens": 60_000}


async def say(client: httpx.AsyncClient, text: str) -> int:
    answer = await client.post(f"{SESSION}/events", json={"events": [{"type": "user.message", "content": text}]})
    answer.raise_for_status()
    return int(answer.json()["head"])


async def context(client: httpx.AsyncClient, **asked: Any) -> dict[str, Any]:
    answer = await client.get(f"{SESSION}/context", params=ROOM | asked)
    answer.raise_for_status()
    found: dict[str, Any] = answer.json()
    return found


async def test_a_context_shows_events_appended_through_either_server(
    servers: Servers,
) -> None:
    for number in range(12):
        head = await say(servers[number % 2], f"number {number}")
        for asked in servers if number % 3 else servers[:1]:
            found = await context(asked)
            assert found["head"] == head
            assert f"number {number}" in str(found["request"]["messages"][-1])
    same = [(await context(server))["sha256"] for server in servers]
    assert same[0] == same[1]


async def test_an_epoch_opened_by_one_server_is_used_by_the_other(
    servers: Servers,
) -> None:
    await say(servers[0], "hello")
    first = await context(servers[0])
    await context(servers[1], max_tokens=50_000)
    found = await context(servers[0], max_tokens=50_000)
    assert (first["epoch"], found["epoch"]) == (1, 2)


async def test_concurrent_contexts_of_one_view_may_each_open_an_epoch(
    servers: Servers,
) -> None:
    await say(servers[0], "hello")
    windows = [50_000 + number for number in range(32)]
    asking = [context(servers[number % 2], max_tokens=window) for number, window in enumerate(windows)]
    found = await asyncio.gather(*asking)
    assert sorted(one["epoch"] for one in found) == list(range(1, 33))


async def test_breakpoints_build_on_the_last_call_of_either_server(
    servers: Servers,
) -> None:
    await say(servers[0], "a long beginning " * 2_000)
    await context(servers[0])
    head = await say(servers[0], "a long middle " * 2_000)
    assert (await context(servers[1]))["cache"]["breakpoints"][-1]["seq"] == head
    head = await say(servers[0], "the end")
    points = [point["seq"] for point in (await context(servers[0]))["cache"]["breakpoints"]]
    assert points[-2:] == [head - 1, head]


async def test_a_session_deleted_through_one_server_is_gone_for_the_other(
    servers: Servers,
) -> None:
    await say(servers[0], "secret")
    await context(servers[0])
    (await servers[1].delete(SESSION)).raise_for_status()
    assert (await servers[0].get(f"{SESSION}/context", params=ROOM)).status_code == 404
    await say(servers[1], "anew")
    assert "secret" not in str((await context(servers[0]))["request"])


async def test_a_session_created_again_through_one_server_is_not_shown_from_the_others_cache(
    servers: Servers,
) -> None:
    await say(servers[0], "secret")
    old = await context(servers[0])
    (await servers[1].delete(SESSION)).raise_for_status()
    assert await say(servers[1], "anew") == old["head"]
    found = await context(servers[0])
    assert ("secret" in str(found["request"]), "anew" in str(found["request"])) == (False, True)


async def test_a_policy_set_through_one_server_applies_to_the_others_next_append(
    servers: Servers, database: Database
) -> None:
    (await servers[0].put(SESSION, json={"policy": {"summarize": {"enabled": False}}})).raise_for_status()
    for number in range(20):
        await say(servers[0], f"{number} " + "and so on " * 200)
    assert not await database.fetch("SELECT FROM pgqueuer WHERE entrypoint = 'compact'")
    small = {"window_tokens": 4_000, "reserve_tokens": 500}
    (await servers[1].put(SESSION, json={"policy": small})).raise_for_status()
    pressures = [await pressure(server) for server in servers]
    assert pressures[0]["budget"] == pressures[1]["budget"] < 4_000
    assert await database.fetch("SELECT FROM pgqueuer WHERE entrypoint = 'compact'")


async def test_a_policy_set_through_one_server_applies_to_turn_ends_through_the_other(servers: Servers) -> None:
    await say(servers[0], "hello")
    (await servers[1].put(SESSION, json={"policy": {"window_tokens": 4_000, "reserve_tokens": 500}})).raise_for_status()
    ended = await servers[0].post(f"{SESSION}/turns/end", json={})
    assert ended.json()["pressure"]["budget"] < 4_000


async def test_a_session_created_again_has_no_model_cached_by_the_other_server(
    servers: Servers, database: Database
) -> None:
    (await servers[0].put(SESSION, json={"model": "claude-sonnet-4-5"})).raise_for_status()
    await say(servers[0], "hello")
    (await servers[1].delete(SESSION)).raise_for_status()
    await say(servers[0], "hello again")
    (await servers[1].put("/v1/sessions/fresh", json={})).raise_for_status()
    begun, fresh = await database.fetch("SELECT model, estimator FROM sessions ORDER BY created_at")
    assert tuple(begun) == tuple(fresh)


@pytest.mark.wing("audit")
@pytest.mark.wing("gateway")
async def test_a_broken_reply_is_not_logged_if_the_client_retried_through_the_other_server(
    gateway: str, http: httpx.AsyncClient, provider: Provider, behind: GatewayReader, database_url: str
) -> None:
    provider.script.extend(
        [ProviderReply("Half of this will come.", cut=5, hold=asyncio.Event()), ProviderReply("All of it.")]
    )
    body = {"model": "m", "max_tokens": 9, "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    path = "/gateway/s/shared/anthropic/v1/messages"
    async with (
        serving(settings(provider), database_url) as url,
        httpx.AsyncClient(base_url=url, transport=Loopback()) as other,
        http.stream("POST", path, json=body) as answer,
    ):
        pieces = answer.aiter_bytes()
        while b"text_delta" not in await anext(pieces):
            pass
        assert b"message_stop" in (await other.post(path, json=body)).content
    items = (await http.get(f"{SESSION}/calls")).json()["items"]
    for call in items:
        await behind.reported(http, call["call_id"], "shared")
    assert len(items) == 2
    events = (await http.get(f"{SESSION}/events")).json()["items"]
    assert [json.dumps(one["content"]).count("All of it.") for one in events] == [0, 1]
    assert len((await http.get(f"{SESSION}/lines")).json()["items"]) == 1


async def pressure(client: httpx.AsyncClient) -> dict[str, Any]:
    answer = await client.post(f"{SESSION}/events", json={"events": [{"type": "user.message", "content": "more"}]})
    found: dict[str, Any] = answer.raise_for_status().json()["pressure"]
    return found
