"""The log over HTTP: order, idempotency, atomic batches and refusals."""

import asyncio
import json

import httpx
import pytest

USER = {"type": "user.message", "content": "hello"}


async def post(client: httpx.AsyncClient, events: object, sid: str = "s", **more: object) -> httpx.Response:
    headers = more.pop("headers", None)
    return await client.post(f"/v1/sessions/{sid}/events", json={"events": events, **more}, headers=headers)


async def log(client: httpx.AsyncClient, sid: str = "s") -> list[dict]:
    items, after = [], 0
    while True:
        page = (await client.get(f"/v1/sessions/{sid}/events", params={"after": after, "limit": 500})).json()
        items += page["items"]
        if page["next_cursor"] is None:
            return items
        after = items[-1]["seq"]


async def test_events_get_gapless_seqs_turns_ids_and_tokens(client: httpx.AsyncClient) -> None:
    answer = await post(
        client,
        [
            {"type": "system.prompt", "content": "Be brief."},
            USER,
            {"type": "tool.call", "call_id": "c1", "tool": "read", "arguments": {"path": "a"}},
            {"type": "tool.result", "call_id": "c1", "content": "text of a"},
            {"type": "assistant.message", "content": "Done."},
            {"type": "user.message", "id": "mine", "content": "again"},
        ],
    )
    assert answer.status_code == 201
    body = answer.json()
    assert (body["session"], body["head"], body["epoch"]) == ("s", 6, 0)
    assert [e["seq"] for e in body["events"]] == [1, 2, 3, 4, 5, 6]
    assert [e["turn"] for e in body["events"]] == [0, 1, 1, 1, 1, 2]
    assert body["events"][5]["id"] == "mine"
    assert len({e["id"] for e in body["events"]}) == 6
    assert all(e["tokens"] > 0 for e in body["events"])
    pressure = body["pressure"]
    assert pressure["tokens"] == sum(e["tokens"] for e in body["events"])
    assert pressure["level"] == "none"
    stored = await log(client)
    assert [e["id"] for e in stored] == [e["id"] for e in body["events"]]
    assert stored[2]["arguments"] == {"path": "a"}
    assert (await client.get("/v1/sessions/s/events/4")).json() == stored[3]
    assert (await client.get("/v1/sessions/s/events/7")).status_code == 404


async def test_a_repeated_append_returns_the_first_response(client: httpx.AsyncClient) -> None:
    first = await post(client, [USER, {**USER, "id": "x"}], headers={"Idempotency-Key": "k"})
    await post(client, [USER])
    again = await post(client, [USER, {**USER, "id": "x"}], headers={"Idempotency-Key": "k"})
    other = await post(client, [{**USER, "content": "other"}], headers={"Idempotency-Key": "k"})
    assert (first.status_code, again.status_code, other.status_code) == (201, 200, 409)
    assert again.json() == first.json()
    assert other.json()["type"] == "/problems/idempotency-conflict"
    assert len(await log(client)) == 3


async def test_a_repeated_event_id_returns_the_stored_event(client: httpx.AsyncClient) -> None:
    first = await post(client, [{**USER, "id": "a"}, {**USER, "id": "b"}])
    again = await post(client, [{**USER, "id": "a"}, {**USER, "id": "b"}])
    more = await post(client, [{**USER, "id": "b"}, {**USER, "id": "c"}])
    other = await post(client, [{"type": "user.message", "id": "b", "content": "changed"}, {**USER, "id": "d"}])
    assert (first.status_code, again.status_code, more.status_code, other.status_code) == (201, 200, 201, 409)
    assert again.json() == first.json()
    assert [e["seq"] for e in more.json()["events"]] == [2, 3]
    assert other.json()["type"] == "/problems/idempotency-conflict"
    assert len(await log(client)) == 3


async def test_expected_head_guards_an_append(client: httpx.AsyncClient) -> None:
    await post(client, [USER])
    stale = await post(client, [USER], expected_head=0)
    right = await post(client, [USER], expected_head=1)
    assert (stale.status_code, right.status_code) == (409, 201)
    assert stale.json()["type"] == "/problems/head-conflict"
    assert stale.json()["head"] == 1
    assert len(await log(client)) == 2


@pytest.mark.parametrize(
    ("events", "kind"),
    [
        ([{"type": "user.message", "content": "x", "colour": "red"}], "invalid-event"),
        ([{"type": "user.massage", "content": "x"}], "invalid-event"),
        ([USER, {"type": "user.message"}], "invalid-event"),
        ([{"type": "tool.result", "call_id": "none", "content": "x"}], "unknown-call"),
        ([{"type": "tool.result", "call_id": "done", "content": "second"}], "unknown-call"),
        ([{"type": "tool.call", "call_id": "open", "tool": "t"}], "duplicate-call"),
        ([{"type": "tool.call", "call_id": "n\x00", "tool": "t"}], "invalid-event"),
        ([USER] * 1001, "invalid-request"),
        ([], "invalid-request"),
        ("events", "invalid-request"),
        ([{**USER, "id": "twice"}, {**USER, "id": "twice"}], "invalid-event"),
        ([{"type": "tools", "content": "no json"}], "invalid-event"),
        ([{**USER, "occurred_at": []}], "invalid-event"),
        ([{**USER, "ttl_turns": 0}], "invalid-event"),
    ],
)
async def test_a_batch_with_an_invalid_event_is_refused_whole(
    client: httpx.AsyncClient, events: object, kind: str
) -> None:
    await post(
        client,
        [
            {"type": "tool.call", "call_id": "done", "tool": "t"},
            {"type": "tool.result", "call_id": "done", "content": "x"},
            {"type": "tool.call", "call_id": "open", "tool": "t"},
        ],
    )
    batch = [USER, *events] if isinstance(events, list) and 0 < len(events) < 1000 else events
    answer = await post(client, batch)
    assert answer.json()["type"] == f"/problems/{kind}", answer.text
    assert answer.status_code == 422
    assert len(await log(client)) == 3


async def test_invalid_json_is_refused(client: httpx.AsyncClient) -> None:
    for raw in (
        b'{"events":[{"type":"user.message","content":"x","metadata":{"n":NaN}}]}',
        b'{"events":',
        b"[]",
        b'{"events":[{"type":"user.message","content":"x"}],"extra":1}',
        b'{"events":' + b"[" * 100_000,
    ):
        answer = await client.post("/v1/sessions/s/events", content=raw, headers={"content-type": "application/json"})
        assert answer.status_code == 422, raw[:60]
        assert answer.json()["type"].startswith("/problems/invalid-"), answer.text
    assert (await client.get("/v1/sessions/s")).status_code == 404


async def test_a_body_over_the_limit_is_413(client: httpx.AsyncClient) -> None:
    events = [{"type": "user.message", "content": "x" * (33 * 1024 * 1024)}]
    announced = await post(client, events)

    async def unannounced():
        yield b'{"events":['
        for _ in range(40):
            yield b" " * (1024 * 1024)

    streamed = await client.post("/v1/sessions/s/events", content=unannounced())
    for answer in (announced, streamed):
        assert answer.status_code == 413
        assert answer.json()["type"] == "/problems/body-too-large"
    assert (await client.get("/v1/sessions/s")).status_code == 404


async def test_fifty_writers_on_one_session_lose_and_repeat_nothing(client: httpx.AsyncClient) -> None:
    async def write(writer: int) -> None:
        for number in range(6):
            batch = [{**USER, "id": f"w{writer}-{number}-{k}", "content": f"{writer} {number} {k}"} for k in range(3)]
            assert (await post(client, batch)).status_code == 201

    await asyncio.gather(*(write(writer) for writer in range(50)))
    events = await log(client)
    assert [e["seq"] for e in events] == list(range(1, 901))
    assert len({e["id"] for e in events}) == 900
    assert [e["turn"] for e in events] == list(range(1, 901))
    for writer in range(50):
        own = [e["content"] for e in events if e["content"].startswith(f"{writer} ")]
        assert own == [f"{writer} {number} {k}" for number in range(6) for k in range(3)]


@pytest.mark.slow
async def test_fifty_writers_on_fifty_sessions(client: httpx.AsyncClient) -> None:
    async def write(writer: int) -> None:
        for number in range(10):
            assert (await post(client, [{**USER, "content": str(number)}], sid=f"s{writer}")).status_code == 201

    await asyncio.gather(*(write(writer) for writer in range(50)))
    for writer in range(50):
        assert [e["content"] for e in await log(client, f"s{writer}")] == [str(n) for n in range(10)]


async def test_concurrent_repeats_of_one_request_append_once(client: httpx.AsyncClient) -> None:
    batch = [{**USER, "id": "a"}, {**USER, "id": "b"}]
    answers = await asyncio.gather(*(post(client, batch, headers={"Idempotency-Key": "k"}) for _ in range(20)))
    assert sorted({a.status_code for a in answers}) == [200, 201]
    assert sum(a.status_code == 201 for a in answers) == 1
    assert len({json.dumps(a.json(), sort_keys=True) for a in answers}) == 1
    assert len(await log(client)) == 2


async def test_a_result_may_answer_a_call_of_an_earlier_batch(client: httpx.AsyncClient) -> None:
    await post(client, [USER, {"type": "tool.call", "call_id": "c", "tool": "t"}])
    answer = await post(client, [{"type": "tool.result", "call_id": "c", "content": "late"}])
    assert answer.status_code == 201
    reused = await post(
        client,
        [{"type": "tool.call", "call_id": "c", "tool": "t"}, {"type": "tool.result", "call_id": "c", "content": "2"}],
    )
    assert reused.status_code == 201
