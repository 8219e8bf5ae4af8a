"""Gemini, Azure OpenAI and Vertex AI through the gateway, with the vendors' own clients."""

import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import httpx
import openai
import pytest
from google import genai
from google.genai import types
from google.oauth2.credentials import Credentials

from app.runtime.settings import Settings
from tests.support.gateways import KEY, NO_WAIT_POLICY, SESSION, GatewayReader, events_of
from tests.support.provider import Provider, ProviderReply

pytestmark = pytest.mark.wing("gateway")
Json = dict[str, Any]
CALLS = [("", "read_file", {"path": "a.py"}), ("", "read_file", {"path": "b.py"})]
VERTEX = "/v1/projects/p/locations/l/publishers/anthropic/models"


@pytest.fixture
def gateway_settings(provider: Provider, mode: str) -> Settings:
    """The other upstreams, whose addresses are as in clients' settings."""
    url = provider.url
    return Settings(
        gateway_gemini_url=f"{url}/v1beta",
        gateway_azure_url=f"{url}/openai/v1/",
        gateway_azure_window_tokens=9_000,
        gateway_vertex_url=f"{url}/v1",
        gateway_mode=mode,
    )


@pytest.fixture
def mode() -> str:
    return "enforce"


@pytest.fixture
async def google(gateway: str) -> AsyncIterator[Any]:
    options = types.HttpOptions(base_url=f"{gateway}/gateway/gemini", headers=SESSION)
    client = genai.Client(api_key=KEY, http_options=options)
    yield client.aio
    await client.aio.aclose()
    client.close()


@pytest.mark.wing("audit")
@pytest.mark.parametrize("stream", [False, True])
async def test_googles_chat_completes_a_tool_round_on_one_line(
    google: Any, http: httpx.AsyncClient, provider: Provider, stream: bool, behind: GatewayReader
) -> None:
    """The client sends each chunk of a streamed reply back as a content of its own."""
    provider.script.extend(
        [ProviderReply("I look at both.", CALLS, thinking="Hm."), ProviderReply("Both are empty."), ProviderReply()]
    )
    declared: Json = {"name": "read_file", "description": "Read.", "parameters_json_schema": {"type": "object"}}
    config: Any = {"system_instruction": "You are terse.", "tools": [{"function_declarations": [declared]}], "seed": 7}
    chat = google.chats.create(model="gemini-3-pro-preview", config=config)
    results = [types.Part.from_function_response(name="read_file", response={"output": "text"}) for _ in range(2)]
    calls = []
    for message in ("Read both.", results, "Thanks."):
        if stream:
            async for chunk in await chat.send_message_stream(message):
                said = chunk
        else:
            said = await chat.send_message(message)
        calls.append(said.sdk_http_response.headers["x-palimpsest-call"])
        await behind.reported(http, calls[-1])
    assert not provider.refused
    first, _, last = (one.body for one in provider.calls())
    assert first["tools"] == last["tools"] and last["generationConfig"]["seed"] == 7
    assert last["systemInstruction"]["parts"] == [{"text": "You are terse."}]
    assert [one["role"] for one in last["contents"]] == ["user", "model", "user", "model", "user"]
    parts = last["contents"][1]["parts"]
    assert [part["thoughtSignature"] for part in parts if "thoughtSignature" in part]
    assert [part["text"] for part in parts if "text" in part and not part.get("thought")] == ["I look at both."]
    assert {one.header("x-goog-api-key") for one in provider.calls()} == {KEY}
    items = await behind.logged(http, len(await events_of(http)))
    types_ = [one["type"] for one in items if one["type"] not in ("tools", "system.prompt")]
    round_ = ["assistant.message", "tool.call", "tool.call", "tool.result", "tool.result"]
    assert types_ == ["user.message", *round_, "assistant.message", "user.message", "assistant.message"]
    assert len((await http.get("/v1/sessions/s/lines")).json()["items"]) == 1
    usage = (await behind.reported(http, calls[0]))["outcome"]["usage"]
    assert (usage["output_tokens"], usage["cache_read_tokens"]) == (7, 0)
    assert usage["input_tokens"] == max(1, len(provider.calls()[0].raw) // 4)


def _contents(count: int) -> list[Json]:
    return [
        {"role": "model" if number % 2 else "user", "parts": [{"text": f"{number} " + "word " * 400}]}
        for number in range(count)
    ]


async def test_geminis_refusal_of_a_long_context_is_answered_by_a_smaller_one(
    http: httpx.AsyncClient, provider: Provider
) -> None:
    message = "The input token count (90000) exceeds the maximum number of tokens allowed (8000)."
    error = {"error": {"code": 400, "message": message, "status": "INVALID_ARGUMENT"}}
    provider.script.append(ProviderReply(status=400, error=error))
    (await http.put("/v1/sessions/s", json={"policy": {"window_tokens": 16_000, **NO_WAIT_POLICY}})).raise_for_status()
    path = "/gateway/s/s/gemini/v1beta/models/gemini-2.5-pro:generateContent"
    answer = await http.post(path, json={"contents": _contents(41)})
    assert (answer.status_code, answer.headers["x-palimpsest-mode"]) == (200, "context")
    first, second = provider.calls()
    assert len(second.raw) < len(first.raw)


async def test_a_cached_content_passes_unchanged(http: httpx.AsyncClient, provider: Provider) -> None:
    path = "/gateway/s/s/gemini/v1beta/models/gemini-2.5-pro:generateContent"
    body = {"cachedContent": "cachedContents/1", "contents": _contents(1)}
    answer = await http.post(path, json=body)
    assert answer.headers["x-palimpsest-reason"] == "conversation-at-provider"
    counted = await http.post(path.replace("generateContent", "countTokens"), json={"contents": _contents(1)})
    assert counted.headers["x-palimpsest-mode"] == "passthrough"


@pytest.mark.wing("audit")
@pytest.mark.parametrize("mode", ["observe"])
async def test_an_observer_of_gemini_sends_the_clients_bytes(
    http: httpx.AsyncClient, provider: Provider, behind: GatewayReader
) -> None:
    given = _contents(3)
    raw = json.dumps({"contents": given, "systemInstruction": {"parts": [{"text": "Be terse."}]}}, indent=3).encode()
    path = "/gateway/s/s/gemini/v1beta/models/gemini-2.5-pro:streamGenerateContent?alt=sse"
    provider.script.append(ProviderReply(raw=b'data: {"error": {"code": 503, "message": "overloaded"}}\n\n'))
    provider.script[0].headers = {"content-type": "text/event-stream"}
    answer = await http.post(path, content=raw, headers={"content-type": "application/json"})
    assert answer.headers["x-palimpsest-mode"] == "observed"
    record = await behind.reported(http, answer.headers["x-palimpsest-call"])
    assert record["outcome"]["error"]["message"] == "overloaded"


def azure(url: str, version: str) -> openai.AsyncAzureOpenAI:
    return openai.AsyncAzureOpenAI(
        azure_endpoint=f"{url}/gateway/azure",
        api_key=KEY,
        api_version=version,
        max_retries=0,
        default_headers=SESSION,
    )


@pytest.mark.wing("audit")
@pytest.mark.parametrize(("version", "has_usage"), [("2024-06-01", False), ("2024-10-21", True)])
async def test_azures_client_streams_from_a_deployment(
    gateway: str, http: httpx.AsyncClient, provider: Provider, behind: GatewayReader, version: str, has_usage: bool
) -> None:
    """Versions before 2024-09 refuse `stream_options`, so usage is not requested from them."""
    messages: Any = [{"role": "assistant" if n % 2 else "user", "content": f"{n} " + "word " * 400} for n in range(41)]
    async with azure(gateway, version) as client:
        raw = await client.chat.completions.with_raw_response.create(model="mine", messages=messages, stream=True)
        said = "".join([chunk.choices[0].delta.content or "" async for chunk in raw.parse()])
    assert said == "Hello."
    [asked] = provider.calls()
    assert (asked.path, asked.query) == ("/openai/deployments/mine/chat/completions", f"api-version={version}")
    assert asked.header("api-key") == KEY
    assert asked.body.get("stream_options") == ({"include_usage": True} if has_usage else None)
    assert len(asked.body["messages"]) < len(messages)
    record = await behind.reported(http, raw.headers["x-palimpsest-call"])
    assert (record["model"], record["tokens"]["limit"]) == ("mine", 9_000)
    assert record["outcome"]["usage"]["output_tokens"] == (7 if has_usage else None)
    assert (await events_of(http))[-1]["type"] == "assistant.message"


async def test_azures_newer_paths_name_the_model_in_the_body(gateway: str, provider: Provider) -> None:
    url = f"{gateway}/gateway/azure/openai/v1/"
    async with openai.AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0, default_headers=SESSION) as client:
        raw = await client.chat.completions.with_raw_response.create(
            model="gpt-5-mini", messages=[{"role": "user", "content": "hi"}]
        )
    assert raw.headers["x-palimpsest-mode"] == "context"
    assert [one.path for one in provider.calls()] == ["/openai/v1/chat/completions"]


@pytest.mark.wing("audit")
@pytest.mark.parametrize("stream", [False, True])
async def test_vertex_gets_contexts_of_the_model_in_its_path(
    gateway: str, http: httpx.AsyncClient, provider: Provider, stream: bool, behind: GatewayReader
) -> None:
    client = anthropic.AsyncAnthropicVertex(
        region="l",
        project_id="p",
        access_token=KEY,
        base_url=f"{gateway}/gateway/vertex/v1",
        max_retries=0,
        default_headers=SESSION,
    )
    given: Any = {"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}], "model": "claude-sonnet-4@20250514"}
    async with client:
        if stream:
            async with client.messages.stream(**given) as events:
                reply = await events.get_final_message()
                headers = events.response.headers
        else:
            raw = await client.messages.with_raw_response.create(**given)
            reply, headers = await raw.parse(), raw.headers
    assert reply.content[0].text == "Hello."
    [asked] = provider.calls()
    assert asked.path == f"{VERTEX}/claude-sonnet-4@20250514:{'streamRawPredict' if stream else 'rawPredict'}"
    assert "model" not in asked.body and asked.body["anthropic_version"]
    assert asked.header("authorization") == f"Bearer {KEY}"
    record = await behind.reported(http, headers["x-palimpsest-call"])
    assert (record["model"], record["tokens"]["limit"]) == ("claude-sonnet-4@20250514", 200_000)
    assert record["outcome"]["usage"]["output_tokens"] == 7
    assert [one["type"] for one in await behind.logged(http, 2)] == ["user.message", "assistant.message"]


@pytest.mark.wing("audit")
async def test_vertex_counts_the_context_that_would_be_sent(
    gateway: str, http: httpx.AsyncClient, provider: Provider
) -> None:
    policy = {"window_tokens": 16_000, **NO_WAIT_POLICY}
    (await http.put("/v1/sessions/s", json={"policy": policy})).raise_for_status()
    messages: Any = [{"role": "assistant" if n % 2 else "user", "content": f"{n} " + "word " * 400} for n in range(61)]
    client = anthropic.AsyncAnthropicVertex(
        region="l",
        project_id="p",
        access_token=KEY,
        base_url=f"{gateway}/gateway/vertex/v1",
        max_retries=0,
        default_headers=SESSION,
    )
    async with client:
        await client.messages.create(model="claude-sonnet-4@20250514", max_tokens=9, messages=messages)
        counted = await client.messages.count_tokens(model="claude-sonnet-4@20250514", messages=messages)
    assert provider.requests[-1].path == f"{VERTEX}/count-tokens:rawPredict"
    assert provider.requests[-1].body["model"] == "claude-sonnet-4@20250514"
    assert counted.input_tokens < len(json.dumps(messages)) // 8
    assert len((await http.get("/v1/sessions/s/calls")).json()["items"]) == 1


@pytest.mark.wing("audit")
@pytest.mark.parametrize("stream", [False, True])
async def test_vertex_gets_contexts_for_gemini(
    gateway: str, http: httpx.AsyncClient, provider: Provider, stream: bool, behind: GatewayReader
) -> None:
    options = types.HttpOptions(base_url=f"{gateway}/gateway/vertex", headers=SESSION)
    login = Credentials(token=KEY, expiry=None)  # type: ignore[no-untyped-call]
    client = genai.Client(vertexai=True, project="p", location="l", credentials=login, http_options=options)
    asked: Any = {"model": "gemini-2.5-pro", "contents": "hi"}
    if stream:
        async for chunk in await client.aio.models.generate_content_stream(**asked):
            reply = chunk
    else:
        reply = await client.aio.models.generate_content(**asked)
    await client.aio.aclose()
    client.close()
    [sent] = provider.calls()
    name = "streamGenerateContent" if stream else "generateContent"
    assert sent.path == f"/v1beta1/projects/p/locations/l/publishers/google/models/gemini-2.5-pro:{name}"
    assert sent.header("authorization") == f"Bearer {KEY}"
    record = await behind.reported(http, reply.sdk_http_response.headers["x-palimpsest-call"])
    assert (record["model"], record["outcome"]["usage"]["output_tokens"]) == ("gemini-2.5-pro", 7)
    assert [one["type"] for one in await behind.logged(http, 2)] == ["user.message", "assistant.message"]


@pytest.mark.wing("audit")
async def test_a_stream_of_gemini_may_be_one_list(
    http: httpx.AsyncClient, provider: Provider, behind: GatewayReader
) -> None:
    """The API streams the elements of a JSON list unless `alt=sse` is requested."""
    chunks = [
        {"candidates": [{"content": {"role": "model", "parts": [{"text": text}]}, "index": 0, **more}], **usage}
        for text, more, usage in (
            ("Hel", {}, {}),
            ("lo.", {"finishReason": "STOP"}, {"usageMetadata": {"promptTokenCount": 3, "candidatesTokenCount": 2}}),
        )
    ]
    raw = json.dumps(chunks, indent=1).encode()
    provider.script.append(ProviderReply(raw=raw, headers={"content-type": "application/json; charset=UTF-8"}))
    path = "/gateway/s/s/gemini/v1beta/models/gemini-2.5-pro:streamGenerateContent"
    answer = await http.post(path, json={"contents": _contents(1)})
    assert (answer.content, answer.headers["x-palimpsest-mode"]) == (raw, "context")
    record = await behind.reported(http, answer.headers["x-palimpsest-call"])
    assert (record["outcome"]["usage"]["input_tokens"], record["outcome"]["usage"]["output_tokens"]) == (3, 2)
    assert (await behind.logged(http, 2))[-1]["content"] == [{"type": "text", "text": "Hello."}]


@pytest.mark.wing("audit")
@pytest.mark.parametrize("stream", [False, True])
async def test_azures_responses_continue_a_reply(
    gateway: str, http: httpx.AsyncClient, provider: Provider, stream: bool, behind: GatewayReader
) -> None:
    given: Any = {"model": "gpt-5-mini", "input": "hi"}
    async with azure(gateway, "2025-04-01-preview") as client:
        if stream:
            async with client.responses.stream(**given) as events:
                first = await events.get_final_response()
        else:
            first = await client.responses.create(**given)
        await behind.logged(http, 2)
        raw = await client.responses.with_raw_response.create(
            model="gpt-5-mini", previous_response_id=first.id, input="And now?"
        )
    assert raw.headers["x-palimpsest-mode"] == "context"
    assert [(one.path, one.query) for one in provider.calls()] == [
        ("/openai/responses", "api-version=2025-04-01-preview")
    ] * 2
    last = provider.calls()[-1].body
    assert "previous_response_id" not in last and len(last["input"]) == 3
    assert provider.calls()[-1].header("api-key") == KEY
    record = await behind.reported(http, raw.headers["x-palimpsest-call"])
    assert record["outcome"]["usage"]["output_tokens"] == 7


async def test_state_and_absence_of_the_others(http: httpx.AsyncClient, provider: Provider) -> None:
    found = (await http.get("/v1/gateway")).json()["upstreams"]
    assert found.keys() == {"gemini", "azure", "vertex"}
    for path in ("anthropic/v1/messages", "nobody/v1/messages"):
        assert (await http.post(f"/gateway/{path}", json={})).status_code == 404
