"""System prompts are always shown, whatever is logged around them and however the log is reduced."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from app.runtime import wiring
from app.runtime.settings import Settings
from app.worker import run as run_worker
from tests.conformance.agent import request_text
from tests.support.pooler import pooled

Json = dict[str, Any]

RULE = "Never delete files. Always answer in German."
PRESETS = ("default", "timeline", "pipeline", "clip", "threshold")
TOOL = {"name": "read", "description": "Read a file", "input_schema": {"type": "object", "properties": {}}}
WORDS = "The build of the parser takes the configuration from its own folder and writes the result to disk. " * 20
LOG_TOKENS = 40_000
FORMATS = ("openai", "openai-responses", "anthropic")
ROLES = {"openai": "system", "openai-responses": "developer", "anthropic": "system"}


@pytest.fixture
async def worker(database_url: str) -> AsyncIterator[None]:
    """A worker with the extractive summarizer."""
    stop = asyncio.Event()
    running = asyncio.create_task(run_worker(database_url, stop, wiring.worker_work(pooled(Settings(), database_url))))
    yield
    stop.set()
    await running


async def events(http: httpx.AsyncClient, sid: str, *logged: Json) -> Json:
    answer = await http.post(f"/v1/sessions/{sid}/events", json={"events": list(logged)})
    assert answer.status_code in (200, 201), answer.text
    found: Json = answer.json()
    return found


async def messages(http: httpx.AsyncClient, sid: str, *said: Json, form: str = "openai") -> Json:
    answer = await http.post(f"/v1/sessions/{sid}/messages", json={"format": form, "messages": list(said)})
    assert answer.status_code == 201, answer.text
    found: Json = answer.json()
    return found


async def context(http: httpx.AsyncClient, sid: str, **asked: Any) -> Json:
    answer = await http.post(f"/v1/sessions/{sid}/context", json=asked)
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


async def types(http: httpx.AsyncClient, sid: str) -> list[str]:
    items = (await http.get(f"/v1/sessions/{sid}/events", params={"limit": 1000})).json()["items"]
    return [item["type"] for item in items]


async def rounds(http: httpx.AsyncClient, sid: str, first: int, count: int) -> None:
    logged: list[Json] = []
    for number in range(first, first + count):
        logged += [
            {"type": "user.message", "content": f"Question {number}: what does part {number} say?"},
            {"type": "tool.call", "call_id": f"c{number}", "tool": "read", "arguments": {"path": f"src/{number}.py"}},
            {"type": "tool.result", "call_id": f"c{number}", "content": f"part {number}\x00: {WORDS}"},
            {"type": "assistant.message", "content": f"Part {number} says little. {WORDS[:400]}"},
        ]
    await events(http, sid, *logged)


async def _after_tools(http: httpx.AsyncClient, sid: str, rule: Json) -> None:
    await events(http, sid, {"type": "tools", "content": [TOOL]})
    await messages(http, sid, rule, {"role": "user", "content": "Begin."})


async def _after_turn_start(http: httpx.AsyncClient, sid: str, rule: Json) -> None:
    await events(http, sid, {"type": "turn.start", "turn_id": "t1"})
    await messages(http, sid, rule, {"role": "user", "content": "Begin."})


async def _second(http: httpx.AsyncClient, sid: str, rule: Json) -> None:
    await messages(http, sid, {"role": "system", "content": "You help."}, rule, {"role": "user", "content": "Begin."})


async def _in_a_second_request(http: httpx.AsyncClient, sid: str, rule: Json) -> None:
    await messages(http, sid, {"role": "system", "content": "You help."})
    await messages(http, sid, rule)
    await messages(http, sid, {"role": "user", "content": "Begin."})


async def _in_the_middle(http: httpx.AsyncClient, sid: str, rule: Json) -> None:
    await messages(http, sid, {"role": "system", "content": "You help."}, {"role": "user", "content": "Begin."})
    await rounds(http, sid, 1000, 4)
    await messages(http, sid, rule)


PLACES = [_after_tools, _after_turn_start, _second, _in_a_second_request, _in_the_middle]
CASES = [
    pytest.param(preset, place, id=f"{preset}-{place.__name__.strip('_')}", marks=[pytest.mark.slow] if n != m else [])
    for n, preset in enumerate(PRESETS)
    for m, place in enumerate(PLACES)
]
"""The slow cases aside, each preset and each place is tested once."""


@pytest.mark.parametrize(("preset", "place"), CASES)
async def test_system_prompts_are_shown_after_sixty_rounds(
    client: httpx.AsyncClient, worker: None, preset: str, place: Any
) -> None:
    await client.put("/v1/sessions/s", json={"policy": preset})
    await place(client, "s", {"role": "system", "content": RULE})
    for first in range(0, 60, 10):
        await rounds(client, "s", first, 10)
        answer = await client.post("/v1/sessions/s/compactions", json={"wait_ms": 30_000})
        assert answer.status_code == 200, answer.text
        found = await context(client, "s", max_tokens=LOG_TOKENS // 10)
        assert RULE in request_text(found) or place is _in_the_middle, first
    assert RULE in request_text(found)
    assert found["evictions"]
    assert (await client.get("/v1/sessions/s")).json()["tokens"]["log"] >= LOG_TOKENS
    assert (await client.get("/v1/sessions/s/coverage")).json()["ok"]


@pytest.mark.wing("audit")
@pytest.mark.parametrize("form", FORMATS)
async def test_leading_prompts_round_trip_in_their_own_format_and_come_first_in_others(
    client: httpx.AsyncClient, form: str
) -> None:
    """Two prompts stay two, after tools and a turn's start, in one request or in two."""
    said = [{"role": ROLES[form], "content": "You help."}, {"role": "system", "content": RULE}]
    await events(client, "s", {"type": "tools", "content": [TOOL]})
    await messages(client, "s", said[0], form=form)
    await events(client, "s", {"type": "turn.start", "turn_id": "t1"})
    await messages(client, "s", said[1], {"role": "user", "content": "Begin."}, form=form)
    assert await types(client, "s") == ["tools", "system.prompt", "turn.start", "system.prompt", "user.message"]
    for other in FORMATS:
        found = await context(client, "s", format=other)
        request = found["request"]
        assert found["evictions"] == []
        if other == "anthropic":
            assert [part["text"] for part in request["system"]] == ["You help.", RULE]
            assert [message["role"] for message in request["messages"]] == ["user"]
        elif other == form:
            assert request[{"openai": "messages"}.get(other, "input")] == [*said, {"role": "user", "content": "Begin."}]
        elif other == "openai-responses":
            assert request["instructions"] == f"You help.\n\n{RULE}"
        else:
            assert [(m["role"], m["content"]) for m in request["messages"][:2]] == [
                ("system", "You help."),
                ("system", RULE),
            ]
        again = await client.get(f"/v1/sessions/s/calls/{found['call_id']}/context")
        assert again.json()["sha256"] == found["sha256"]


@pytest.mark.wing("audit")
async def test_a_new_prompt_after_a_conversation_replaces_all_earlier_ones(client: httpx.AsyncClient) -> None:
    await messages(client, "s", {"role": "system", "content": "You help."}, {"role": "system", "content": RULE})
    await events(client, "s", {"type": "user.message", "content": "Begin."})
    first = await context(client, "s")
    await events(client, "s", {"type": "system.prompt", "content": "You are new."})
    await events(client, "s", {"type": "system.prompt", "content": "You are kind."})
    found = await context(client, "s")
    assert [m["content"] for m in found["request"]["messages"]] == ["You are new.", "You are kind.", "Begin."]
    assert [(r["from_seq"], r["to_seq"], r["reason"]) for r in found["evictions"]] == [
        (1, 1, "superseded"),
        (2, 2, "superseded"),
    ]
    epochs = (await client.get("/v1/sessions/s/epochs")).json()["items"]
    assert [epoch["cause"] for epoch in epochs if epoch["epoch"] == found["epoch"]] == ["system_prompt"]
    assert (await client.get("/v1/sessions/s/coverage")).json()["ok"]
    again = await client.get(f"/v1/sessions/s/calls/{first['call_id']}/context")
    assert again.json()["sha256"] == first["sha256"]


async def test_new_views_of_long_sessions_forks_and_earlier_seqs_show_all_prompts(
    client: httpx.AsyncClient,
) -> None:
    await messages(client, "s", {"role": "system", "content": "You help."})
    await events(client, "s", {"type": "turn.start", "turn_id": "t1"})
    await messages(client, "s", {"role": "system", "content": RULE}, {"role": "user", "content": "Begin."})
    await rounds(client, "s", 0, 30)
    for at in (40, 80, 124):
        answer = await client.post("/v1/sessions/s/fork", json={"at": at, "id": f"f{at}"})
        assert answer.status_code == 201, answer.text
    await rounds(client, "f80", 100, 2)
    await client.post("/v1/sessions/f80/fork", json={"at": 85, "id": "f85"})
    asked: list[tuple[str, Json]] = [("s", {}), ("s", {"at": 60, "view": "other"}), ("f40", {}), ("f80", {})]
    asked += [("f124", {}), ("f80", {"at": 83, "view": "other"}), ("f85", {}), ("f85", {"at": 50, "view": "third"})]
    for sid, more in asked:
        found = await context(client, sid, max_tokens=3_000, **more)
        assert [m["content"] for m in found["request"]["messages"][:2]] == ["You help.", RULE], (sid, more)


async def test_a_system_message_that_leads_a_later_request_stays_in_its_place(client: httpx.AsyncClient) -> None:
    said = [{"role": "user", "content": "Begin."}, {"role": "system", "content": RULE}]
    await messages(client, "s", said[0])
    await messages(client, "s", said[1])
    assert await types(client, "s") == ["user.message", "system.message"]
    assert (await context(client, "s"))["request"]["messages"] == said
