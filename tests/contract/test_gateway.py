"""The gateway over real sockets, with the vendors' own clients: what passes through, is replaced, and is logged."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import httpx
import openai
import pytest

from app.services.tenants import Tenants
from app.settings import Settings
from app.store.engine import Database
from tests.conftest import serving
from tests.support.provider import STREAMS, Provider, Said, serving_provider

KEY = "sk-the-providers-key-123456"
SESSION = {"x-palimpsest-session": "s"}
OVERFLOW = {
    "/v1/messages": {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "prompt is too long: 9000 tokens > 8000 maximum"},
    },
    "/v1/chat/completions": {
        "error": {
            "message": "This model's maximum context length is 8000 tokens, but your messages have 9000 tokens.",
            "type": "invalid_request_error",
            "code": "context_length_exceeded",
        }
    },
}
TOOL_CALLS = [("toolu_1", "read_file", {"path": "a.py"}), ("toolu_2", "read_file", {"path": "b.py"})]


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    async with serving_provider() as found:
        yield found


@pytest.fixture
async def gateway(database_url: str, provider: Provider) -> AsyncIterator[str]:
    """The base URL of a server with its gateway on."""
    async with serving(settings(provider), database_url) as url:
        yield url


@pytest.fixture
async def http(gateway: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=gateway, timeout=30, verify=False) as client:
        yield client


def settings(provider: Provider, **given: Any) -> Settings:
    return Settings(gateway_anthropic_url=provider.url, gateway_openai_url=f"{provider.url}/v1", **given)


def claude(gateway: str, headers: dict[str, str] = SESSION) -> anthropic.AsyncAnthropic:
    url = f"{gateway}/gateway/anthropic"
    return anthropic.AsyncAnthropic(base_url=url, api_key=KEY, max_retries=0, default_headers=headers)


def gpt(gateway: str, headers: dict[str, str] = SESSION) -> openai.AsyncOpenAI:
    url = f"{gateway}/gateway/openai/v1"
    return openai.AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0, default_headers=headers)


async def logged(http: httpx.AsyncClient, number: int, session: str = "s", **headers: str) -> list[dict[str, Any]]:
    """The session's events, once there are so many: replies are logged behind the answer."""
    for _ in range(500):
        answer = await http.get(f"/v1/sessions/{session}/events?limit=1000", headers=headers)
        items = answer.json()["items"] if answer.status_code == 200 else []
        if len(items) >= number:
            break
        await asyncio.sleep(0.01)
    assert len(items) == number, [one["type"] for one in items]
    return items


async def reported(http: httpx.AsyncClient, call: str, session: str = "s") -> dict[str, Any]:
    """A call's record, once its outcome is there."""
    for _ in range(500):
        found = (await http.get(f"/v1/sessions/{session}/calls/{call}")).json()
        if found.get("outcome"):
            break
        await asyncio.sleep(0.01)
    return found


async def test_it_is_off_until_an_upstream_is_named(client: httpx.AsyncClient, database_url: str) -> None:
    for path in ("/gateway/anthropic/v1/messages", "/gateway/openai/v1/models"):
        assert (await client.post(path, json={})).status_code == 404
    only = Settings(gateway_openai_url="http://127.0.0.1:9/v1")
    async with serving(only, database_url) as url, httpx.AsyncClient(base_url=url, verify=False) as other:
        assert (await other.post("/gateway/anthropic/v1/messages", json={})).status_code == 404
        answer = await other.post("/gateway/openai/v1/chat/completions", json={})
        assert (answer.status_code, answer.json()["type"]) == (502, "/problems/upstream-failed")
        assert answer.json()["error"]["message"] == answer.json()["detail"]


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "PATCH"])
async def test_every_other_path_passes_through_untouched(
    http: httpx.AsyncClient, provider: Provider, method: str
) -> None:
    body = b"" if method == "GET" else b'{"any":  "bytes", \xff'
    headers = {
        "x-api-key": KEY,
        "anthropic-beta": "a,b",
        "x-palimpsest-key": "none",
        "connection": "x-hop",
        "x-hop": "1",
    }
    path = "/gateway/anthropic/v1/files/a%2Fb?beta=true&q=%20x"
    del headers["x-palimpsest-key"]
    answer = await http.request(method, path, content=body, headers=headers | {"accept-encoding": "br;q=0.5"})
    assert (answer.status_code, answer.content) == (207, body or b"nothing")
    [asked] = provider.asked
    assert (asked.method, asked.query, asked.raw) == (method, "beta=true&q=%20x", body)
    assert (asked.header("x-api-key"), asked.header("anthropic-beta")) == (KEY, "a,b")
    assert (asked.header("accept-encoding"), asked.header("x-hop")) == ("br;q=0.5", None)
    assert answer.headers["x-request-id"] == "r1"
    assert answer.headers.get_list("x-palimpsest-mode") == ["passthrough"]
    assert len(answer.headers.get_list("date")) == 1


async def test_without_a_session_a_call_goes_as_it_came_and_says_so(
    http: httpx.AsyncClient, provider: Provider
) -> None:
    raw = b'{ "model":"m", "prompt_cache_key": "k", "messages":[{"role":"user","content":"hi"}] }'
    provider.compress = True
    url = "/gateway/openai/v1/chat/completions"
    answer = await http.post(url, content=raw, headers={"accept-encoding": "gzip"})
    assert provider.asked[-1].raw == raw
    assert (answer.headers["x-palimpsest-mode"], answer.headers["x-palimpsest-reason"]) == ("passthrough", "no-session")
    assert answer.headers["content-encoding"] == "gzip"
    assert answer.json()["choices"][0]["message"]["content"] == "Hello."
    assert (await http.get("/v1/sessions")).json()["items"] == []


@pytest.mark.parametrize("stream", [False, True])
async def test_anthropics_client_lives_through_a_tool_round(
    gateway: str, http: httpx.AsyncClient, provider: Provider, stream: bool
) -> None:
    provider.script.extend([Said("I look.", TOOL_CALLS, thinking="Hm."), Said("Done.")])
    tools: Any = [{"name": "read_file", "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"}}]
    messages: Any = [{"role": "user", "content": "Read both."}]
    given: Any = {"model": "claude-sonnet-5", "max_tokens": 100, "tools": tools, "stop_sequences": ["X"]}
    given["system"] = [{"type": "text", "text": "You are terse.", "cache_control": {"type": "ephemeral"}}]
    async with claude(gateway) as client:
        for _ in range(2):
            if stream:
                async with client.messages.stream(messages=messages, **given) as events:
                    reply = await events.get_final_message()
            else:
                reply = await client.messages.create(messages=messages, **given)
            content = [block.model_dump(exclude_none=True) for block in reply.content]
            messages = [*messages, {"role": "assistant", "content": content}]
            results = [
                {"type": "tool_result", "tool_use_id": block.id, "content": "text"}
                for block in reply.content
                if block.type == "tool_use"
            ]
            if results:
                messages.append({"role": "user", "content": results})
    assert reply.content[-1].text == "Done."
    assert not provider.refused
    first, second = (one.body for one in provider.calls())
    assert first["tools"] == second["tools"] == tools
    assert (second["stop_sequences"], second["max_tokens"]) == (["X"], 100)
    assert [one["role"] for one in second["messages"]] == ["user", "assistant", "user"]
    assert second["messages"][1]["content"][0]["signature"] == "c2ln1"
    items = await logged(http, 8 + ("tools" in {one["type"] for one in await events_of(http)}))
    types = [one["type"] for one in items if one["type"] != "tools"]
    assert types[0] == "system.prompt"
    round_ = ["assistant.message", "tool.call", "tool.call", "tool.result", "tool.result"]
    assert types[1:] == ["user.message", *round_, "assistant.message"]


async def events_of(http: httpx.AsyncClient) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = (await http.get("/v1/sessions/s/events?limit=1000")).json()["items"]
    return items


@pytest.mark.parametrize("stream", [False, True])
async def test_openais_client_lives_through_a_tool_round(
    gateway: str, http: httpx.AsyncClient, provider: Provider, stream: bool
) -> None:
    provider.script.extend([Said("", TOOL_CALLS), Said("Done.")])
    function = {"name": "read_file", "parameters": {"type": "object"}}
    messages: Any = [{"role": "system", "content": "You are terse."}, {"role": "user", "content": "Read both."}]
    given: Any = {"model": "gpt-5-mini", "tools": [{"type": "function", "function": function}], "seed": 7}
    async with gpt(gateway) as client:
        for _ in range(2):
            if stream:
                async with client.chat.completions.stream(messages=messages, **given) as events:
                    async for event in events:
                        if event.type == "chunk":
                            assert event.chunk.choices, "the chunk that only the gateway asked for"
                    reply = (await events.get_final_completion()).choices[0].message
            else:
                reply = (await client.chat.completions.create(messages=messages, **given)).choices[0].message
            messages = [*messages, reply.model_dump(exclude_none=True)]
            for call in reply.tool_calls or ():
                messages.append({"role": "tool", "tool_call_id": call.id, "content": "text"})
    assert reply.content == "Done."
    assert not provider.refused
    _, second = (one.body for one in provider.calls())
    assert [one["role"] for one in second["messages"]] == ["system", "user", "assistant", "tool", "tool"]
    assert second["seed"] == 7
    extra = "tools" in {one["type"] for one in await events_of(http)}
    items = await logged(http, 7 + extra)
    assert [one["type"] for one in items][-1] == "assistant.message"


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions", "/v1/responses"])
@pytest.mark.parametrize("pieces", [None, 7])
async def test_a_streams_bytes_are_the_providers(
    gateway: str, http: httpx.AsyncClient, provider: Provider, path: str, pieces: int | None
) -> None:
    """But for the chunk with the usage that the client did not ask for."""
    provider.pieces = pieces
    name = "anthropic" if path == "/v1/messages" else "openai"
    field = "input" if path == "/v1/responses" else "messages"
    body = {"model": "m", "max_tokens": 9, "stream": True, field: [{"role": "user", "content": "hi"}]}
    answer = await http.post(f"/gateway/s/s/{name}{path}", json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-palimpsest-mode"] == "context"
    [asked] = provider.asked
    _, events = STREAMS[path](asked.body, Said(), 1, max(1, len(asked.raw) // 4))
    if path == "/v1/chat/completions":
        assert asked.body["stream_options"] == {"include_usage": True}
        events = [event for event in events if b'"choices": []' not in event]
    assert answer.content == b"".join(events)
    record = await reported(http, answer.headers["x-palimpsest-call"], answer.headers["x-palimpsest-line"])
    assert record["outcome"]["usage"]["output_tokens"] == 7
    [_, said] = await logged(http, 2)
    assert said["type"] == "assistant.message"
    assert "partial" not in (said.get("metadata") or {})


async def test_the_answer_says_what_was_done(gateway: str, http: httpx.AsyncClient, provider: Provider) -> None:
    async with claude(gateway) as client:
        raw = await client.messages.with_raw_response.create(
            model="claude-sonnet-5", max_tokens=9, messages=[{"role": "user", "content": "hi"}]
        )
    said = {name: value for name, value in raw.headers.items() if name.startswith("x-palimpsest-")}
    assert said.keys() == {
        f"x-palimpsest-{name}" for name in ("mode", "session", "line", "call", "epoch", "tokens-sent", "tokens-wanted")
    }
    assert (said["x-palimpsest-mode"], said["x-palimpsest-session"]) == ("context", "s")
    assert int(said["x-palimpsest-tokens-sent"]) > 0
    assert int(said["x-palimpsest-tokens-wanted"]) > 0


async def test_what_does_not_fit_the_window_is_left_out(
    gateway: str, http: httpx.AsyncClient, provider: Provider
) -> None:
    """The window is that of the session's policy; the client goes on with its whole list."""
    policy = {"window_tokens": 4_000, "reserve_tokens": 500}
    assert (await http.put("/v1/sessions/s", json={"policy": policy, "model": "gpt-5-mini"})).status_code == 201
    messages: Any = [{"role": "user", "content": "Read the files, one after the other."}]
    async with gpt(gateway) as client:
        for number in range(20):
            provider.script.append(Said("", [(f"call_{number}", "read_file", {"path": f"{number}.py"})]))
            raw = await client.chat.completions.with_raw_response.create(model="gpt-5-mini", messages=messages)
            reply = raw.parse().choices[0].message
            text = f"line of file {number} " * 200
            messages = [*messages, reply.model_dump(exclude_none=True)]
            messages.append({"role": "tool", "tool_call_id": f"call_{number}", "content": text})
    assert not provider.refused
    for one in provider.calls():
        assert one.body["messages"][0] == messages[0], one.body["messages"][:3]
    assert int(raw.headers["x-palimpsest-tokens-sent"]) < 4_000 < int(raw.headers["x-palimpsest-tokens-wanted"])
    assert len(provider.calls()[-1].raw) < len(json.dumps(messages)) // 3


@pytest.mark.parametrize("path", sorted(OVERFLOW))
@pytest.mark.parametrize("again", [False, True])
async def test_a_call_that_was_too_long_is_asked_once_more(
    http: httpx.AsyncClient, provider: Provider, path: str, again: bool
) -> None:
    refusal = Said(status=400, error=OVERFLOW[path])
    provider.script.extend([refusal, refusal] if again else [refusal])
    results = [{"role": "user", "content": f"{number} " + "word " * 300} for number in range(20)]
    said = [{"role": "assistant", "content": f"answer {number}"} for number in range(20)]
    messages = [one for pair in zip(results, said, strict=True) for one in pair] + [{"role": "user", "content": "And?"}]
    name = "anthropic" if path == "/v1/messages" else "openai"
    body = {"model": "m", "max_tokens": 9, "stream": True, "messages": messages}
    await http.put("/v1/sessions/s", json={"policy": {"window_tokens": 16_000}})
    answer = await http.post(f"/gateway/s/s/{name}{path}", json=body)
    first, second = provider.calls()
    assert len(second.raw) < len(first.raw)
    calls = (await http.get("/v1/sessions/s/calls")).json()["items"]
    assert len(calls) == 2
    if again:
        assert (answer.status_code, answer.json()) == (400, OVERFLOW[path])
    else:
        assert answer.status_code == 200
        record = await reported(http, answer.headers["x-palimpsest-call"])
        assert record["retry_of"] is not None


async def test_a_refusal_that_is_none_of_ours_comes_back_as_it_is(http: httpx.AsyncClient, provider: Provider) -> None:
    error = {"error": {"message": f"Incorrect API key provided: {KEY}.", "code": "invalid_api_key"}}
    provider.script.append(Said(status=401, error=error))
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    headers = {"authorization": f"Bearer {KEY}"}
    answer = await http.post("/gateway/s/s/openai/v1/chat/completions", json=body, headers=headers)
    assert (answer.status_code, answer.json()) == (401, error)
    assert len(provider.calls()) == 1


async def test_a_stream_that_breaks_off_does_so_for_the_client_and_its_reply_is_partial(
    http: httpx.AsyncClient, provider: Provider
) -> None:
    provider.script.append(Said("Half of this will come.", cut=5))
    body = {"model": "m", "max_tokens": 9, "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    with pytest.raises(httpx.RemoteProtocolError):
        await http.post("/gateway/s/s/anthropic/v1/messages", json=body)
    [_, said] = await logged(http, 2)
    assert said["metadata"] == {"partial": True}
    assert json.dumps(said["content"]).count("Half of t") == 1
    [call] = (await http.get("/v1/sessions/s/calls")).json()["items"]
    record = await reported(http, call["call_id"])
    assert record["outcome"]["error"]["message"] == "the stream broke off"


async def test_a_client_that_goes_ends_the_request_upstream(http: httpx.AsyncClient, provider: Provider) -> None:
    provider.script.append(Said("Half of this will come.", cut=5, hold=asyncio.Event()))
    body = {"model": "m", "max_tokens": 9, "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    async with http.stream("POST", "/gateway/s/s/anthropic/v1/messages", json=body) as answer:
        pieces = answer.aiter_bytes()
        seen = b""
        while b"text_delta" not in seen:
            seen += await anext(pieces)
        assert not provider.dropped.is_set()
    await asyncio.wait_for(provider.dropped.wait(), 5)
    [_, said] = await logged(http, 2)
    assert said["metadata"] == {"partial": True}


async def test_a_context_that_cannot_be_made_lets_the_clients_own_bytes_go(
    http: httpx.AsyncClient, provider: Provider
) -> None:
    await http.put("/v1/sessions/s", json={"policy": {"window_tokens": 2_000, "reserve_tokens": 100}})
    raw = json.dumps({"messages": [{"role": "user", "content": "word " * 5_000}], "model": "m", "max_tokens": 9})
    answer = await http.post("/gateway/s/s/anthropic/v1/messages", content=raw)
    assert answer.status_code == 200
    assert provider.asked[-1].raw == raw.encode()
    assert answer.headers["x-palimpsest-mode"] == "bypass"
    assert answer.headers["x-palimpsest-reason"] == "context-infeasible"


@pytest.mark.parametrize(
    ("raw", "reason"),
    [(b"not json", "unreadable"), (b'{"messages": 7, "model": "m"}', "no-messages"), (b'{"a":' * 200, "unreadable")],
)
async def test_what_cannot_be_read_is_the_providers_to_refuse(
    http: httpx.AsyncClient, provider: Provider, raw: bytes, reason: str
) -> None:
    answer = await http.post("/gateway/s/s/anthropic/v1/messages/", content=raw)  # another path: passes through
    assert (answer.status_code, answer.content) == (207, raw)
    answer = await http.post("/gateway/s/s/openai/v1/chat/completions", content=raw)
    assert answer.headers["x-palimpsest-mode"] == "bypass"
    assert answer.headers["x-palimpsest-reason"] == reason
    assert provider.asked[-1].raw == raw


async def test_while_the_database_is_away_calls_go_as_they_came(provider: Provider) -> None:
    nowhere = "postgresql+asyncpg://nobody@127.0.0.1:9/none"
    raw = b'{"model":"m", "messages":[{"role":"user","content":"hi"}]}'
    async with (
        serving(settings(provider, api_key="a-key-with-all-scopes"), nowhere) as url,
        httpx.AsyncClient(base_url=url, verify=False, timeout=30) as http,
    ):
        headers = {"x-palimpsest-key": "a-key-with-all-scopes"}
        answer = await http.post("/gateway/s/s/openai/v1/chat/completions", content=raw, headers=headers)
    assert answer.status_code == 200
    assert answer.headers["x-palimpsest-mode"] == "bypass"
    assert provider.asked[-1].raw == raw


async def test_our_key_opens_and_never_goes_upstream(database_url: str, provider: Provider, database: Database) -> None:
    bound = (await Tenants(database, None).create_key("default", "k", ["ingest", "read"], session_prefix="a:")).secret
    reader = (await Tenants(database, None).create_key("default", "k", ["read"])).secret
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    path = "/gateway/openai/v1/chat/completions"
    async with (
        serving(settings(provider), database_url) as url,
        httpx.AsyncClient(base_url=url, verify=False) as http,
    ):

        async def status(key: str | None, **headers: str) -> int:
            keyed = {} if key is None else {"x-palimpsest-key": key}
            return (
                await http.post(path, json=body, headers={"authorization": f"Bearer {KEY}", **keyed, **headers})
            ).status_code

        assert await status(None) == 401
        assert await status(f"{bound}x") == 401
        assert await status(reader) == 403
        assert not provider.asked
        assert await status(bound) == 200
        assert await status(bound, **{"x-palimpsest-session": "b:1"}) == 404
        assert await status(bound, **{"x-palimpsest-session": "a:1"}) == 200
        assert await status(bound, **{"x-session-id": "oc"}) == 200
    sent = "".join(f"{one.headers}{one.raw!r}" for one in provider.asked)
    assert KEY in sent
    assert "pal_" not in sent and "x-palimpsest" not in sent
    names = {row["external_id"] for row in await database.fetch("SELECT external_id FROM sessions")}
    assert {"a:1", "a:oc"} <= {name.partition("@line")[0] for name in names}


async def test_a_providers_key_is_nowhere(
    http: httpx.AsyncClient, provider: Provider, database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not in the database, the log, an error or a metric, also where the provider repeats it."""
    said = f"You sent {KEY}, and it is too long: prompt is too long: 9000 tokens > 8000 maximum"
    error = {"type": "error", "error": {"type": "invalid_request_error", "message": said}}
    scripts = [
        Said(),
        Said(status=400, error=error),
        Said(cut=2),
        Said(status=401, error=error),
        Said(status=500, error=error),
    ]
    body = {"model": "m", "max_tokens": 9, "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    headers = {"x-api-key": KEY, "authorization": f"Bearer {KEY}", "x-palimpsest-session": "s"}
    for one in scripts:
        provider.script.append(one)
        try:
            await http.post(f"/gateway/anthropic/v1/messages?key={KEY}", json=body, headers=headers)
        except httpx.RemoteProtocolError:
            assert one.cut
        provider.script.clear()
    for call in (await http.get("/v1/sessions/s/calls")).json()["items"]:
        await reported(http, call["call_id"])
    tables = await database.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    found = []
    for table in tables:
        rows = await database.fetch(f"SELECT t::text AS row FROM {table['tablename']} t")
        found += [table["tablename"] for row in rows if KEY in row["row"]]
    assert not found
    output = capsys.readouterr()
    metrics = (await http.get("/metrics")).text
    assert KEY not in output.out + output.err + metrics
    assert "palimpsest_gateway_calls" in metrics


async def test_no_more_than_so_many_are_under_way(database_url: str, provider: Provider) -> None:
    provider.script.append(Said(cut=2, hold=asyncio.Event()))
    body = {"model": "m", "max_tokens": 9, "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    url = "/gateway/anthropic/v1/messages"
    async with (
        serving(settings(provider, gateway_requests_max=1), database_url) as base,
        httpx.AsyncClient(base_url=base, verify=False) as http,
    ):
        async with http.stream("POST", url, json=body):
            answer = await http.post(url, json=body)
            assert (answer.status_code, answer.json()["error"]["type"]) == (503, "overloaded")
            assert answer.headers["retry-after"] == "1"
        await asyncio.wait_for(provider.dropped.wait(), 5)
        assert (await http.post(url, json=body)).status_code == 200


@pytest.mark.parametrize(
    "path", ["/gateway/s/two%20words/openai/v1/chat/completions", "/gateway/s//openai/v1/responses"]
)
async def test_a_session_that_cannot_be_is_an_error(http: httpx.AsyncClient, provider: Provider, path: str) -> None:
    answer = await http.post(path, json={"model": "m", "messages": [{"role": "user", "content": "hi"}]})
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/invalid-request")
    assert not provider.asked
