"""Steps in one request: an outcome, an append and a context give what their three requests give."""

import asyncio
import json
import random
from typing import Any
from uuid import UUID

import httpx
import pytest

from app.runtime.settings import Settings
from app.store.engine import Database
from tests.conftest import serving
from tests.support.requesting import Loopback
from tests.support.statements import ServerLog

STEPS = 60
WINDOW = 2_400
UNLIKE = {"call_id", "session", "line", "id", "model"}
"""Fields that differ between two sessions that did the same."""


def happened(step: int) -> list[dict[str, Any]]:
    """Return what happens before a step: a round with a tool, and a user's message in every fifth."""
    rng = random.Random(step)
    known = ["walk", "read", "line", "file", "test", "name", "error", "value"]
    words = " ".join(rng.choice(known) for _ in range(rng.randint(5, 160)))
    events: list[dict[str, Any]] = [
        {"type": "tool.call", "call_id": f"c{step}", "tool": "read", "arguments": {"path": f"src/{step % 7}.py"}},
        {"type": "tool.result", "call_id": f"c{step}", "content": words, "is_error": step % 11 == 0},
    ]
    return [{"type": "user.message", "content": f"Request {step}: {words[:80]}"}, *events] if step % 5 == 0 else events


def messages(step: int) -> list[dict[str, Any]]:
    """Return the events of `happened(step)` as OpenAI messages, which have no error flags."""
    said: list[dict[str, Any]] = []
    for event in happened(step):
        match event["type"]:
            case "user.message":
                said.append({"role": "user", "content": event["content"]})
            case "tool.call":
                call = {"name": event["tool"], "arguments": json.dumps(event["arguments"])}
                said.append(
                    {
                        "role": "assistant",
                        "tool_calls": [{"id": event["call_id"], "type": "function", "function": call}],
                    }
                )
            case _:
                said.append({"role": "tool", "tool_call_id": event["call_id"], "content": event["content"]})
    return said


def usage(context: dict[str, Any], step: int) -> dict[str, Any]:
    """Return the usage of a model that counts a little differently from call to call."""
    tokens = int(context["tokens"]["estimate"] * (0.99 + 0.01 * (step % 3)))
    return {"usage": {"input_tokens": tokens, "output_tokens": 7}, "latency_ms": 10}


def alike(value: Any) -> Any:
    """Return a response without what differs between two sessions."""
    if isinstance(value, dict):
        return {name: alike(item) for name, item in value.items() if name not in UNLIKE}
    return [alike(item) for item in value] if isinstance(value, list) else value


async def ok(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code in (200, 201), answer.text
    body: dict[str, Any] = answer.json()
    return body


@pytest.mark.parametrize("form", ["openai", "anthropic"])
async def test_one_request_gives_what_three_give(client: httpx.AsyncClient, database: Database, form: str) -> None:
    asks = {"format": form, "max_tokens": WINDOW}
    apart: dict[str, Any] | None = None
    together: dict[str, Any] | None = None
    for step in range(STEPS):
        append = {"events": happened(step)} if step % 2 else {"format": "openai", "messages": messages(step)}
        one: dict[str, Any] = {}
        body: dict[str, Any] = {"append": append, **asks, "model": "model-b"}
        if apart is not None and together is not None:
            path = f"/v1/sessions/a/calls/{apart['call_id']}/outcome"
            one["outcome"] = await ok(await client.post(path, json=usage(apart, step)))
            body["outcome"] = {"call_id": together["call_id"], **usage(together, step)}
        kind = "events" if "events" in append else "messages"
        one["appended"] = await ok(await client.post(f"/v1/sessions/a/{kind}", json=append))
        apart = await ok(await client.post("/v1/sessions/a/context", json={**asks, "model": "model-a"}))
        together = await ok(await client.post("/v1/sessions/b/context", json=body))
        assert alike(together) == alike(apart | one), step
    assert together is not None
    assert together["epoch"] > 3  # the log outgrew the window several times
    rows = await database.fetch(
        "SELECT s.external_id, m.head, m.epoch, m.estimate, m.target, m.sha256, m.input_tokens, m.latency_ms "
        "FROM model_calls m JOIN sessions s USING (session_id) ORDER BY m.call_id"
    )
    records = {name: [tuple(row)[1:] for row in rows if row["external_id"] == name] for name in ("a", "b")}
    assert records["a"] == records["b"]
    assert len(records["a"]) == STEPS
    learned = await database.fetch("SELECT ratio, margin, reported FROM calibrations ORDER BY model")
    assert learned[0] == learned[1]


async def test_a_step_is_one_commit(client: httpx.AsyncClient, database_url: str) -> None:
    log = await ServerLog.begin(database_url)
    await client.post("/v1/sessions/s/events", json={"events": happened(0)})
    context = await ok(await client.post("/v1/sessions/s/context", json={"max_tokens": 50_000, "model": "m"}))
    before = len(log.statements())
    outcome = {"call_id": context["call_id"], **usage(context, 0)}
    body = {"outcome": outcome, "append": {"events": happened(1)}}
    await ok(await client.post("/v1/sessions/s/context", json=body))
    sent = [one.sql for one in log.statements()[before:]]
    assert [sql for sql in sent if sql.startswith("COMMIT")] == ["COMMIT;"]
    assert sent[0].startswith("BEGIN"), sent  # nothing is read or written before the transaction
    append, call, _ = sent[-3:]  # the held view is extended and planned on: no event is read
    assert "INSERT INTO events" in append
    assert call.startswith("INSERT INTO model_calls")


async def test_the_first_step_creates_the_session(client: httpx.AsyncClient) -> None:
    made = await ok(await client.post("/v1/sessions/new/context", json={"append": {"events": happened(0)}}))
    assert made["appended"]["head"] == made["head"] == 3
    assert "outcome" not in made


async def test_an_infeasible_context_leaves_the_append_made(client: httpx.AsyncClient) -> None:
    first = await ok(await client.post("/v1/sessions/s/context", json={"append": {"events": happened(0)}}))
    pinned = {"type": "user.message", "content": "word " * 5_000, "pinned": True}
    body = {"outcome": {"call_id": first["call_id"], **usage(first, 0)}, "append": {"events": [pinned]}}
    answer = await client.post("/v1/sessions/s/context", json={**body, "max_tokens": 1_000})
    assert answer.status_code == 422
    problem = answer.json()
    assert problem["type"] == "/problems/context-infeasible"
    assert problem["part"] == "context"
    assert problem["appended"]["head"] == 4
    assert problem["outcome"] == {"overflow": False, "action": "none"}
    assert (await client.get("/v1/sessions/s")).json()["head"] == 4
    again = await client.post(f"/v1/sessions/s/calls/{first['call_id']}/outcome", json=usage(first, 1))
    assert again.status_code == 409  # the outcome is recorded


@pytest.mark.parametrize(
    ("body", "part", "slug"),
    [
        (
            {"append": {"events": [{"type": "tool.result", "call_id": "none", "content": "x"}]}},
            "append",
            "unknown-call",
        ),
        ({"append": {"events": [{"type": "nonsense"}]}}, "append", "invalid-event"),
        ({"append": {"format": "openai", "messages": [{"role": "nobody"}]}}, "append", "invalid-message"),
        ({"append": {"events": []}}, "append", "invalid-request"),
        ({"append": {"events": happened(1), "expected_head": 77}}, "append", "head-conflict"),
        ({"append": {"events": happened(1), "surplus": 1}}, "append", "invalid-request"),
        ({"append": {"events": happened(1)}, "policy": "unknown"}, "context", "not-found"),
    ],
)
async def test_a_failed_part_is_named_and_nothing_is_recorded(
    client: httpx.AsyncClient, body: dict[str, Any], part: str, slug: str
) -> None:
    first = await ok(await client.post("/v1/sessions/s/context", json={"append": {"events": happened(0)}}))
    outcome = {"call_id": first["call_id"], **usage(first, 0)}
    answer = await client.post("/v1/sessions/s/context", json={**body, "outcome": outcome})
    problem = answer.json()
    assert (problem["type"], problem["part"]) == (f"/problems/{slug}", part), problem
    assert "appended" not in problem
    assert (await client.get("/v1/sessions/s")).json()["head"] == 3
    other = await client.post(f"/v1/sessions/s/calls/{first['call_id']}/outcome", json=usage(first, 1))
    assert other.status_code == 200  # no outcome was recorded


async def test_an_unknown_call_is_the_outcomes_failure(client: httpx.AsyncClient) -> None:
    outcome = {"call_id": str(UUID(int=1)), "latency_ms": 1}
    answer = await client.post("/v1/sessions/s/context", json={"outcome": outcome, "append": {"events": happened(0)}})
    assert answer.status_code == 404
    assert answer.json()["part"] == "outcome"
    assert (await client.get("/v1/sessions/s")).status_code == 404  # nor was the session created


async def test_a_repeated_step_returns_the_same(client: httpx.AsyncClient) -> None:
    first = await ok(await client.post("/v1/sessions/s/context", json={"append": {"events": happened(0)}}))
    body = {"outcome": {"call_id": first["call_id"], **usage(first, 0)}, "append": {"events": happened(1)}}
    key = {"Idempotency-Key": "k1"}
    made = await client.post("/v1/sessions/s/context", json=body, headers=key)
    again = await client.post("/v1/sessions/s/context", json=body, headers=key)
    assert again.content == made.content
    assert (await client.get("/v1/sessions/s")).json()["head"] == 5
    other = await client.post("/v1/sessions/s/context", json={"append": {"events": happened(2)}}, headers=key)
    assert other.json()["type"] == "/problems/idempotency-conflict"


async def test_a_repeated_step_whose_context_failed_appends_once(client: httpx.AsyncClient) -> None:
    pinned = {"type": "user.message", "content": "word " * 5_000, "pinned": True}
    body = {"append": {"events": [pinned]}, "max_tokens": 1_000}
    for _ in range(2):
        answer = await client.post("/v1/sessions/s/context", json=body, headers={"Idempotency-Key": "k"})
        assert answer.json()["type"] == "/problems/context-infeasible"
        assert answer.json()["appended"]["head"] == 1
    assert (await client.get("/v1/sessions/s")).json()["head"] == 1


async def test_events_with_known_ids_are_appended_once(client: httpx.AsyncClient) -> None:
    events = [{"id": "e1", "type": "user.message", "content": "Hello"}]
    first = await ok(await client.post("/v1/sessions/s/context", json={"append": {"events": events}}))
    longer = [*events, {"id": "e2", "type": "assistant.message", "content": "Yes?"}]
    second = await ok(await client.post("/v1/sessions/s/context", json={"append": {"events": longer}}))
    assert [one["seq"] for one in second["appended"]["events"]] == [1, 2]
    assert (first["head"], second["head"]) == (1, 2)


async def test_an_overflow_and_its_retry_are_one_request(client: httpx.AsyncClient) -> None:
    asks = {"max_tokens": 50_000, "policy": {"summarize": {"enabled": False}}}
    first = await ok(await client.post("/v1/sessions/s/context", json={"append": {"events": happened(0)}, **asks}))
    error = {"status": 400, "message": "prompt is too long: 60000 tokens > 50000 maximum"}
    outcome = {"call_id": first["call_id"], "error": error}
    answer = await ok(
        await client.post("/v1/sessions/s/context", json={"outcome": outcome, "retry_of": first["call_id"]})
    )
    assert answer["outcome"]["action"] == "retry"
    assert answer["call_id"] != first["call_id"]  # without the outcome, the retry would have been refused


async def test_an_outcome_goes_with_a_whole_list(client: httpx.AsyncClient) -> None:
    conversation = [{"role": "user", "content": "Hello"}]
    first = await ok(await client.post("/v1/sessions/s/context", json={"messages": conversation}))
    conversation.append({"role": "assistant", "content": "Yes?"})
    outcome = {"call_id": first["call_id"], **usage(first, 0)}
    second = await ok(await client.post("/v1/sessions/s/context", json={"messages": conversation, "outcome": outcome}))
    assert second["outcome"]["action"] == "none"
    assert [one["index"] for one in second["appended"]] == [1]


@pytest.mark.parametrize("field", ["messages", "at"])
async def test_an_append_excludes_messages_and_at(client: httpx.AsyncClient, field: str) -> None:
    value: Any = {"messages": [{"role": "user", "content": "Hello"}], "at": 1}[field]
    answer = await client.post("/v1/sessions/s/context", json={"append": {"events": happened(0)}, field: value})
    assert answer.status_code == 422
    assert answer.json()["field"] == field


async def test_a_step_follows_a_moved_name(servers: tuple[httpx.AsyncClient, httpx.AsyncClient]) -> None:
    here, there = servers
    for step in range(3):
        made = await ok(await here.post("/v1/sessions/s/context", json={"append": {"events": happened(step)}}))
    await ok(await there.post("/v1/sessions/s/rewind", json={"to": 3}))
    outcome = {"call_id": made["call_id"], **usage(made, 0)}
    body = {"outcome": outcome, "append": {"events": [{"type": "user.message", "content": "Again"}]}}
    moved = await ok(await here.post("/v1/sessions/s/context", json=body))
    assert moved["appended"]["line"] == moved["line"] != made["line"]
    assert moved["head"] == 4


async def test_concurrent_steps_need_one_connection_each(database_url: str) -> None:
    # A step that took a second connection while it holds the first would wait for one until the pool gives up.
    small = Settings(pool_size=2)
    async with (
        serving(small, database_url) as url,
        httpx.AsyncClient(base_url=url, timeout=30, transport=Loopback()) as http,
    ):

        async def agent(session: str) -> int:
            made: dict[str, Any] = {}
            for step in range(6):
                body: dict[str, Any] = {"append": {"events": happened(step)}, "max_tokens": 1_500, "model": "m"}
                if made:
                    body["outcome"] = {"call_id": made["call_id"], **usage(made, step)}
                made = await ok(await http.post(f"/v1/sessions/{session}/context", json=body))
            head: int = made["head"]
            return head

        heads = await asyncio.gather(*(agent(f"s{number}") for number in range(12)))
    assert set(heads) == {sum(len(happened(step)) for step in range(6))}
