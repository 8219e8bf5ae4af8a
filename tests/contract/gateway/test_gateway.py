"""The gateway over real sockets with the vendors' own clients: replaced requests, streams, retries and the log."""

import asyncio
import itertools
import json
from typing import Any

import httpx
import pytest

from app.resources.feedback import service as feedback
from app.store.engine import Database
from tests.support.gateways import NO_WAIT_POLICY, GatewayReader, claude, events_of, gpt
from tests.support.provider import STREAMS, Provider, ProviderReply

pytestmark = pytest.mark.wing("gateway")

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


@pytest.mark.parametrize("stream", [False, True])
async def test_anthropics_client_completes_a_tool_round(
    gateway: str, http: httpx.AsyncClient, provider: Provider, stream: bool, behind: GatewayReader
) -> None:
    provider.script.extend([ProviderReply("I look.", TOOL_CALLS, thinking="Hm."), ProviderReply("Done.")])
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
    items = await behind.logged(http, 8 + ("tools" in {one["type"] for one in await events_of(http)}))
    types = [one["type"] for one in items if one["type"] != "tools"]
    assert types[0] == "system.prompt"
    round_ = ["assistant.message", "tool.call", "tool.call", "tool.result", "tool.result"]
    assert types[1:] == ["user.message", *round_, "assistant.message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_openais_client_completes_a_tool_round(
    gateway: str, http: httpx.AsyncClient, provider: Provider, stream: bool, behind: GatewayReader
) -> None:
    provider.script.extend([ProviderReply("", TOOL_CALLS), ProviderReply("Done.")])
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
    items = await behind.logged(http, 7 + extra)
    assert [one["type"] for one in items][-1] == "assistant.message"


@pytest.mark.wing("audit")
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions", "/v1/responses"])
@pytest.mark.parametrize("pieces", [None, 7])
async def test_a_stream_has_the_providers_bytes(
    gateway: str, http: httpx.AsyncClient, provider: Provider, path: str, pieces: int | None, behind: GatewayReader
) -> None:
    """The chunk with usage that only the gateway requested is left out."""
    provider.pieces = pieces
    name = "anthropic" if path == "/v1/messages" else "openai"
    field = "input" if path == "/v1/responses" else "messages"
    body = {"model": "m", "max_tokens": 9, "stream": True, field: [{"role": "user", "content": "hi"}]}
    answer = await http.post(f"/gateway/s/s/{name}{path}", json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-palimpsest-mode"] == "context"
    [asked] = provider.requests
    _, events = STREAMS[path](asked.body, ProviderReply(), 1, max(1, len(asked.raw) // 4))
    if path == "/v1/chat/completions":
        assert asked.body["stream_options"] == {"include_usage": True}
        events = [event for event in events if b'"choices": []' not in event]
    assert answer.content == b"".join(events)
    record = await behind.reported(http, answer.headers["x-palimpsest-call"], answer.headers["x-palimpsest-line"])
    assert record["outcome"]["usage"]["output_tokens"] == 7
    [_, said] = await behind.logged(http, 2)
    assert said["type"] == "assistant.message"
    assert "partial" not in (said.get("metadata") or {})


async def test_response_headers_describe_the_call(gateway: str, http: httpx.AsyncClient, provider: Provider) -> None:
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


async def test_a_conversation_over_the_window_is_reduced(
    gateway: str, http: httpx.AsyncClient, provider: Provider
) -> None:
    """The window is the session's policy's; the client keeps sending its whole conversation."""
    policy = {"window_tokens": 4_000, "reserve_tokens": 500}
    assert (await http.put("/v1/sessions/s", json={"policy": policy, "model": "gpt-5-mini"})).status_code == 201
    messages: Any = [{"role": "user", "content": "Read the files, one after the other."}]
    async with gpt(gateway) as client:
        for number in range(20):
            provider.script.append(ProviderReply("", [(f"call_{number}", "read_file", {"path": f"{number}.py"})]))
            raw = await client.chat.completions.with_raw_response.create(model="gpt-5-mini", messages=messages)
            reply = raw.parse().choices[0].message
            text = f"line of file {number} " * 200
            messages = [*messages, reply.model_dump(exclude_none=True)]
            messages.append({"role": "tool", "tool_call_id": f"call_{number}", "content": text})
    assert not provider.refused
    for one in provider.calls():
        assert messages[0] in one.body["messages"]
    assert int(raw.headers["x-palimpsest-tokens-sent"]) < 4_000 < int(raw.headers["x-palimpsest-tokens-wanted"])
    assert len(provider.calls()[-1].raw) < len(json.dumps(messages)) // 3


async def overflows(http: httpx.AsyncClient) -> list[float]:
    """Return the process's counts of overflows and of retries after one."""
    lines = (await http.get("/metrics")).text.splitlines()
    names = ("palimpsest_overflows_total", "palimpsest_overflow_retries_total")
    return [sum(float(line.split()[-1]) for line in lines if line.startswith(name)) for name in names]


@pytest.mark.wing("audit")
@pytest.mark.parametrize("path", sorted(OVERFLOW))
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.wing("telemetry")
async def test_a_call_that_overflows_is_retried_once(
    http: httpx.AsyncClient, provider: Provider, path: str, again: bool, behind: GatewayReader
) -> None:
    refusal = ProviderReply(status=400, error=OVERFLOW[path])
    provider.script.extend([refusal, refusal] if again else [refusal])
    results = [{"role": "user", "content": f"{number} " + "word " * 300} for number in range(20)]
    said = [{"role": "assistant", "content": f"answer {number}"} for number in range(20)]
    messages = [one for pair in zip(results, said, strict=True) for one in pair] + [{"role": "user", "content": "And?"}]
    name = "anthropic" if path == "/v1/messages" else "openai"
    body = {"model": "m", "max_tokens": 9, "stream": True, "messages": messages}
    await http.put("/v1/sessions/s", json={"policy": {"window_tokens": 16_000, **NO_WAIT_POLICY}})
    before = await overflows(http)
    answer = await http.post(f"/gateway/s/s/{name}{path}", json=body)
    first, second = provider.calls()
    assert await overflows(http) == [before[0] + 1 + again, before[1] + 1]
    assert len(second.raw) < len(first.raw)
    calls = (await http.get("/v1/sessions/s/calls")).json()["items"]
    assert len(calls) == 2
    if again:
        assert (answer.status_code, answer.json()) == (400, OVERFLOW[path])
    else:
        assert answer.status_code == 200
        record = await behind.reported(http, answer.headers["x-palimpsest-call"])
        assert record["retry_of"] is not None


async def test_both_replies_to_a_repeated_request_are_logged(http: httpx.AsyncClient, provider: Provider) -> None:
    """The first reply is on the line, the other on a line of its own that its client may continue."""
    both = asyncio.Event()
    provider.script.extend(
        [ProviderReply("The first.", delay_until=both), ProviderReply("The second.", delay_until=both)]
    )
    url, asked = "/gateway/s/s/openai/v1/chat/completions", [{"role": "user", "content": "hi"}]
    sent = [asyncio.create_task(http.post(url, json={"model": "m", "messages": asked})) for _ in range(2)]
    while len(provider.calls()) < 2:
        await http.get("/healthz")
    both.set()
    replies = [one.json()["choices"][0]["message"]["content"] for one in await asyncio.gather(*sent)]
    assert sorted(replies) == ["The first.", "The second."]
    lines: list[dict[str, Any]] = []
    async with asyncio.timeout(30):
        while len(lines) < 2:
            lines = (await http.get("/v1/sessions/s/lines")).json()["items"]
    assert [(one["head"], one["current"], one["at"]) for one in lines] == [(2, True, None), (2, False, 1)]
    logs = [(await http.get(f"/v1/sessions/{one['id']}/events")).json()["items"] for one in lines]
    assert sorted(log[1]["content"] for log in logs) == ["The first.", "The second."]
    second_reply = {"role": "assistant", "content": logs[1][1]["content"]}
    answer = await http.post(
        url, json={"model": "m", "messages": [*asked, second_reply, {"role": "user", "content": "On"}]}
    )
    assert answer.headers["x-palimpsest-line"] == "s@line.2"
    assert len((await http.get("/v1/sessions/s/lines")).json()["items"]) == 2


@pytest.mark.wing("audit")
async def test_a_broken_stream_breaks_for_the_client_and_its_reply_is_partial(
    http: httpx.AsyncClient, provider: Provider, behind: GatewayReader
) -> None:
    provider.script.append(ProviderReply("Half of this will come.", cut=5))
    body = {"model": "m", "max_tokens": 9, "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    with pytest.raises(httpx.RemoteProtocolError):
        await http.post("/gateway/s/s/anthropic/v1/messages", json=body)
    [_, said] = await behind.logged(http, 2)
    assert said["metadata"] == {"partial": True}
    assert json.dumps(said["content"]).count("Half of t") == 1
    [call] = (await http.get("/v1/sessions/s/calls")).json()["items"]
    record = await behind.reported(http, call["call_id"])
    assert record["outcome"]["error"]["message"] == "the stream broke off"


async def test_a_client_that_disconnects_cancels_the_request_upstream(
    http: httpx.AsyncClient, provider: Provider, behind: GatewayReader
) -> None:
    provider.script.append(ProviderReply("Half of this will come.", cut=5, hold=asyncio.Event()))
    body = {"model": "m", "max_tokens": 9, "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    async with http.stream("POST", "/gateway/s/s/anthropic/v1/messages", json=body) as answer:
        pieces = answer.aiter_bytes()
        seen = b""
        while b"text_delta" not in seen:
            seen += await anext(pieces)
        assert not provider.dropped.is_set()
    await asyncio.wait_for(provider.dropped.wait(), 5)
    [_, said] = await behind.logged(http, 2)
    assert said["metadata"] == {"partial": True}


async def test_increments_are_sent_upstream_as_whole_requests(
    gateway: str, http: httpx.AsyncClient, provider: Provider
) -> None:
    """A client of Responses sends only new items, and later continues an earlier reply."""
    provider.script.extend(
        [
            ProviderReply("I look.", [("call_1", "read_file", {"path": "a.py"})]),
            ProviderReply("Done."),
            ProviderReply("Again."),
        ]
    )
    async with gpt(gateway) as client:

        async def ask(given: Any, previous: str | None) -> Any:
            extra: Any = {} if previous is None else {"previous_response_id": previous}
            return await client.responses.create(model="gpt-5-mini", instructions="Be terse.", input=given, **extra)

        first = await ask("Read a.py.", None)
        result = {"type": "function_call_output", "call_id": "call_1", "output": "x = 1"}
        second = await ask([result], first.id)
        assert second.output_text == "Done."
        third = await ask([{**result, "output": "x = 2"}], first.id)
        assert third.output_text == "Again."
    assert not provider.refused
    bodies = [one.body for one in provider.calls()]
    assert all("previous_response_id" not in body for body in bodies)
    kinds = [[item.get("type", "message") for item in body["input"]] for body in bodies]
    assert kinds == [["message"], *[["message", "message", "function_call", "function_call_output"]] * 2]
    assert [body["input"][-1].get("output") for body in bodies[1:]] == ["x = 1", "x = 2"]
    assert len((await http.get("/v1/sessions/s/lines")).json()["items"]) == 2


async def test_a_continued_thread_is_sent_upstream_whole_as_a_new_thread(
    gateway: str, http: httpx.AsyncClient, provider: Provider
) -> None:
    tools: Any = [{"name": "read_file", "input_schema": {"type": "object"}}]
    given: Any = {"model": "claude-sonnet-5", "max_tokens": 100, "betas": ["message-threads-2026-08-12"]}
    async with claude(gateway) as client:
        first = await client.beta.messages.create(
            **given,
            thread={"type": "create"},
            system="You are terse.",
            tools=tools,
            messages=[{"role": "user", "content": "Say hello."}],
        )
        await client.beta.messages.create(
            **given,
            thread={"type": "continue", "previous_message_id": first.id},
            messages=[{"role": "user", "content": "Once more."}],
        )
    assert not provider.refused
    body = provider.calls()[-1].body
    assert body["thread"] == {"type": "create"}
    assert [part["text"] for part in body["system"]] == ["You are terse."]
    assert [tool["name"] for tool in body["tools"]] == ["read_file"]
    assert [one["role"] for one in body["messages"]] == ["user", "assistant", "user"]


@pytest.mark.wing("audit")
async def test_count_tokens_counts_the_request_that_would_be_sent(
    gateway: str, http: httpx.AsyncClient, provider: Provider
) -> None:
    policy = {"window_tokens": 4_000, "reserve_tokens": 500}
    await http.put("/v1/sessions/s", json={"policy": policy, "model": "claude-sonnet-5"})
    messages: Any = [{"role": "user", "content": "Read the files, one after the other."}]
    given: Any = {"model": "claude-sonnet-5", "messages": messages}
    async with claude(gateway) as client:
        unknown = await client.messages.with_raw_response.count_tokens(**given)
        assert unknown.headers["x-palimpsest-reason"] == "not-in-log"
        for number in range(12):
            provider.script.append(ProviderReply("", [(f"toolu_{number}", "read_file", {"path": f"{number}.py"})]))
            reply = await client.messages.create(**given, max_tokens=100)
            content = [block.model_dump(exclude_none=True) for block in reply.content]
            result = {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": f"line {number} " * 500}
            messages += [{"role": "assistant", "content": content}, {"role": "user", "content": [result]}]
        counted = await client.messages.with_raw_response.count_tokens(**given)
        calls = (await http.get("/v1/sessions/s/calls")).json()["items"]
    assert counted.headers["x-palimpsest-mode"] == "context"
    assert not provider.refused
    assert (await counted.parse()).input_tokens < len(json.dumps(messages)) // 8
    assert len(calls) == 12, "a count is no call"
    sent = provider.requests[-1].body["messages"]
    assert sent[-1] == messages[-1]


async def test_a_retried_call_ends_with_its_own_last_message(
    http: httpx.AsyncClient, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another event is appended while the retry waits for a summary, which no worker writes."""
    monkeypatch.setattr(feedback, "RETRY_WAIT_MS", 2_000)
    path = "/v1/chat/completions"
    provider.script.extend([ProviderReply(status=400, error=OVERFLOW[path]), ProviderReply("To me.")])
    said = [(f"{number} " + "word " * 300, f"answer {number}") for number in range(20)]
    turns = [({"role": "user", "content": one}, {"role": "assistant", "content": other}) for one, other in said]
    messages = [*itertools.chain(*turns), {"role": "user", "content": "And?"}]
    await http.put("/v1/sessions/s", json={"policy": {"window_tokens": 16_000}})
    asked = asyncio.create_task(http.post(f"/gateway/s/s/openai{path}", json={"model": "m", "messages": messages}))
    async with asyncio.timeout(60):
        runs: list[Any] = []
        while not any(run["reason"] == "overflow" for run in runs):
            runs = (await http.get("/v1/sessions/s/compactions")).json().get("items", [])
    other = {"events": [{"type": "user.message", "content": "Somebody else's question"}]}
    assert (await http.post("/v1/sessions/s/events", json=other)).status_code == 201
    assert (await asked).json()["choices"][0]["message"]["content"] == "To me."
    first, again = provider.calls()
    assert len(again.raw) < len(first.raw)
    assert again.body["messages"][-1]["content"] == "And?"


@pytest.mark.wing("audit")
async def test_an_outcome_is_reported_if_the_reply_cannot_be_logged(
    http: httpx.AsyncClient, provider: Provider, behind: GatewayReader, database: Database
) -> None:
    await database.execute(
        "CREATE FUNCTION broken() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'this cannot be'; END $$"
    )
    await database.execute(
        "CREATE TRIGGER broken BEFORE INSERT ON events FOR EACH ROW WHEN (NEW.type = 'assistant.message') "
        "EXECUTE FUNCTION broken()"
    )
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    answer = await http.post("/gateway/s/s/openai/v1/chat/completions", json=body)
    assert answer.status_code == 200
    record = await behind.reported(http, answer.headers["x-palimpsest-call"])
    assert record["outcome"]["usage"]["input_tokens"] > 0
