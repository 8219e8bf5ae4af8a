"""Anthropic's models on Amazon Bedrock through the gateway, with the vendor's own client."""

import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import httpx
import pytest

from app.core.wire.bodies import FrameSplitter
from app.runtime.settings import Settings
from tests.conftest import serving
from tests.support.gateways import KEY, NO_WAIT_POLICY, SESSION, GatewayReader, events_of
from tests.support.provider import Provider, ProviderReply, ReceivedRequest, chunk_frame, frame

pytestmark = pytest.mark.wing("gateway")
Json = dict[str, Any]
MODEL = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"
PATH = f"/model/{MODEL}/invoke"
TOOL: Any = {"name": "read_file", "description": "Read a file.", "input_schema": {"type": "object"}}


@pytest.fixture
def mode() -> str:
    return "enforce"


@pytest.fixture
def gateway_settings(provider: Provider, mode: str) -> Settings:
    return Settings(gateway_bedrock_url=f"{provider.url}/", gateway_mode=mode)


@pytest.fixture
async def bedrock(gateway: str) -> AsyncIterator[anthropic.AsyncAnthropicBedrock]:
    async with anthropic.AsyncAnthropicBedrock(
        aws_region="us-east-1",
        api_key=KEY,
        base_url=f"{gateway}/gateway/bedrock",
        max_retries=0,
        default_headers=SESSION,
    ) as client:
        yield client


def body(messages: Any, **more: Any) -> Json:
    return {"anthropic_version": "bedrock-2023-05-31", "max_tokens": 9, "messages": messages, **more}


def said(text: str) -> list[Json]:
    return [{"role": "user", "content": text}]


def read(stream: bytes) -> list[Any]:
    return [FrameSplitter.read(one.raw) for one in FrameSplitter().feed(stream)]


@pytest.mark.wing("audit")
async def test_a_whole_reply_is_logged_with_its_usage(
    bedrock: anthropic.AsyncAnthropicBedrock, http: httpx.AsyncClient, provider: Provider, behind: GatewayReader
) -> None:
    raw = await bedrock.messages.with_raw_response.create(model=MODEL, max_tokens=9, messages=said("hi"))  # type: ignore[arg-type]
    reply = await raw.parse()
    assert reply.content[0].text == "Hello."  # type: ignore[union-attr]
    [asked] = provider.calls()
    assert (asked.path, asked.header("authorization")) == (PATH, f"Bearer {KEY}")
    assert "model" not in asked.body and asked.body["anthropic_version"]
    record = await behind.reported(http, raw.headers["x-palimpsest-call"])
    assert (record["model"], record["tokens"]["limit"]) == (MODEL, 200_000)
    assert record["outcome"]["usage"]["output_tokens"] == 7
    assert [one["type"] for one in await behind.logged(http, 2)] == ["user.message", "assistant.message"]


@pytest.mark.wing("audit")
@pytest.mark.parametrize("pieces", [None, 1, 7])
async def test_a_streams_bytes_are_the_providers_and_its_reply_is_logged(
    http: httpx.AsyncClient, provider: Provider, behind: GatewayReader, pieces: int | None
) -> None:
    provider.pieces = pieces
    provider.script.append(ProviderReply("I look.", [("toolu_1", "read_file", {"path": "a.py"})], thinking="Hm."))
    path = f"/gateway/s/s/bedrock{PATH}-with-response-stream"
    answer = await http.post(path, json=body(said("hi"), tools=[TOOL]))
    assert answer.headers["x-palimpsest-mode"] == "context"
    [asked] = provider.calls()
    assert answer.content == bytes(asked.answered)
    assert answer.headers["content-type"] == "application/vnd.amazon.eventstream"
    assert [one["type"] for one in read(answer.content)][-1] == "message_stop"
    record = await behind.reported(http, answer.headers["x-palimpsest-call"])
    assert record["outcome"]["usage"]["output_tokens"] == 7
    types = [one["type"] for one in await events_of(http)]
    assert types[-2:] == ["assistant.message", "tool.call"]


async def test_the_vendors_client_reads_the_stream(
    bedrock: anthropic.AsyncAnthropicBedrock, provider: Provider
) -> None:
    pytest.importorskip("botocore", reason="the client reads Amazon's frames with botocore")
    async with bedrock.messages.stream(model=MODEL, max_tokens=9, messages=said("hi")) as events:  # type: ignore[arg-type]
        reply = await events.get_final_message()
    assert (reply.content[0].text, reply.usage.output_tokens) == ("Hello.", 7)  # type: ignore[union-attr]
    assert [one.path for one in provider.calls()] == [f"{PATH}-with-response-stream"]


@pytest.mark.wing("audit")
async def test_thirty_rounds_of_a_tool_fit_a_quarter_of_their_size(
    bedrock: anthropic.AsyncAnthropicBedrock, http: httpx.AsyncClient, provider: Provider, behind: GatewayReader
) -> None:
    window, rounds = 16_000, 30
    policy = {"window_tokens": window, **NO_WAIT_POLICY}
    (await http.put("/v1/sessions/s", json={"policy": policy})).raise_for_status()

    def choose(_: ReceivedRequest) -> ProviderReply:
        number = len(provider.calls())
        call = (f"toolu_{number}", "read_file", {"path": f"{number}.py"})
        return ProviderReply(f"Round {number}.", [call]) if number < rounds else ProviderReply("Done.")

    provider.choose = choose
    messages: list[Any] = said("Read the files one by one.")
    modes = set()
    while True:
        raw = await bedrock.messages.with_raw_response.create(
            model=MODEL, max_tokens=999, messages=messages, tools=[TOOL]
        )
        reply = await raw.parse()
        modes.add(raw.headers["x-palimpsest-mode"])
        await behind.reported(http, raw.headers["x-palimpsest-call"])
        messages.append({"role": "assistant", "content": [one.to_dict() for one in reply.content]})
        calls = [one for one in reply.content if one.type == "tool_use"]
        if not calls:
            break
        text = "".join(f"{one.input['path']} line {n} = value {n}\n" for one in calls for n in range(320))
        results = [{"type": "tool_result", "tool_use_id": one.id, "content": text} for one in calls]
        messages.append({"role": "user", "content": results})
    assert (modes, provider.refused, len(provider.calls())) == ({"context"}, [], rounds)
    given, sent = len(json.dumps(messages)), max(len(one.raw) for one in provider.calls())
    assert sent < given / 4
    assert len((await http.get("/v1/sessions/s/lines")).json()["items"]) == 1


@pytest.mark.parametrize("suffix", ["", "-with-response-stream"])
async def test_a_refusal_of_a_long_context_is_answered_by_a_smaller_one(
    http: httpx.AsyncClient, provider: Provider, suffix: str
) -> None:
    error = {"message": "Input is too long for requested model."}
    provider.script.append(ProviderReply(status=400, error=error))
    (await http.put("/v1/sessions/s", json={"policy": {"window_tokens": 16_000, **NO_WAIT_POLICY}})).raise_for_status()
    given = [{"role": "assistant" if n % 2 else "user", "content": f"{n} " + "word " * 400} for n in range(41)]
    answer = await http.post(f"/gateway/s/s/bedrock{PATH}{suffix}", json=body(given))
    assert (answer.status_code, answer.headers["x-palimpsest-mode"]) == (200, "context")
    first, second = provider.calls()
    assert len(second.raw) < len(first.raw)


@pytest.mark.wing("audit")
@pytest.mark.parametrize(
    ("last", "reason"),
    [
        (
            frame({":message-type": "exception", ":exception-type": "throttlingException"}, b'{"message": "slow"}'),
            "slow",
        ),
        (chunk_frame(b"{}")[:-9], "the stream ends within a frame"),
        (b"\x00" * 40, "checksum"),
    ],
)
async def test_a_stream_that_goes_wrong_passes_unchanged_and_its_error_is_reported(
    http: httpx.AsyncClient, provider: Provider, behind: GatewayReader, last: bytes, reason: str
) -> None:
    started = chunk_frame(b'{"type": "message_start", "message": {"id": "msg_1", "usage": {"input_tokens": 3}}}')
    media = {"content-type": "application/vnd.amazon.eventstream"}
    provider.script.append(ProviderReply(raw=started + last, headers=media))
    answer = await http.post(f"/gateway/s/s/bedrock{PATH}-with-response-stream", json=body(said("hi")))
    assert answer.content == started + last
    record = await behind.reported(http, answer.headers["x-palimpsest-call"])
    assert reason in record["outcome"]["error"]["message"]


async def test_an_error_of_the_provider_passes_unchanged(http: httpx.AsyncClient, provider: Provider) -> None:
    error = {"message": "The security token included in the request is invalid."}
    provider.script.append(ProviderReply(status=403, error=error))
    answer = await http.post(f"/gateway/s/s/bedrock{PATH}", json=body(said("hi")))
    assert (answer.status_code, answer.json()) == (403, error)


@pytest.mark.wing("audit")
@pytest.mark.parametrize("mode", ["observe"])
async def test_an_observer_sends_the_clients_bytes(
    http: httpx.AsyncClient, provider: Provider, behind: GatewayReader
) -> None:
    raw = json.dumps(body(said("hi")), indent=3).encode()
    path = f"/gateway/s/s/bedrock{PATH}-with-response-stream"
    answer = await http.post(path, content=raw, headers={"content-type": "application/json"})
    assert answer.headers["x-palimpsest-mode"] == "observed"
    [asked] = provider.calls()
    assert (asked.raw, answer.content) == (raw, bytes(asked.answered))
    await behind.reported(http, answer.headers["x-palimpsest-call"])
    assert (await events_of(http))[-1]["type"] == "assistant.message"


async def test_other_formats_and_operations_pass_unchanged(http: httpx.AsyncClient, provider: Provider) -> None:
    nova = {"messages": [{"role": "user", "content": [{"text": "hi"}]}]}
    for path, given, mode, reason in (
        ("/model/amazon.nova-pro-v1:0/invoke", nova, "bypass", "unknown-format"),
        (f"/model/{MODEL}/converse", nova, "passthrough", None),
        (f"/model/{MODEL}/count-tokens", {"input": {"invokeModel": {"body": "e30="}}}, "passthrough", None),
    ):
        answer = await http.post(f"/gateway/s/s/bedrock{path}", json=given)
        assert answer.headers["x-palimpsest-mode"] == mode
        assert answer.headers.get("x-palimpsest-reason") == reason
        assert (provider.requests[-1].path, provider.requests[-1].body) == (path, given)


@pytest.mark.wing("audit")
async def test_a_model_may_be_named_by_its_arn(http: httpx.AsyncClient, provider: Provider) -> None:
    model = "arn:aws:bedrock:us-east-1:1:inference-profile/us.anthropic.claude-opus-4-5"
    path = f"/model/{model.replace('/', '%2F')}/invoke"
    answer = await http.post(f"/gateway/s/s/bedrock{path}", json=body(said("hi")))
    record = await http.get(f"/v1/sessions/s/calls/{answer.headers['x-palimpsest-call']}")
    assert record.json()["model"] == model
    assert len(provider.calls()) == 1


async def test_a_signed_request_is_refused_with_the_reason(gateway: str, provider: Provider) -> None:
    """The signature covers the address and the body, so no provider would accept it."""
    fields = {"authorization": "AWS4-HMAC-SHA256 Credential=AKIA/20260101/us-east-1/bedrock/aws4_request, Signature=0"}
    async with httpx.AsyncClient(base_url=gateway, headers=fields) as client:
        answer = await client.post(f"/gateway/bedrock{PATH}", json=body(said("hi")))
    assert answer.status_code == 422 and answer.json()["type"].endswith("/invalid-request")
    assert "API key" in answer.json()["error"]["message"]
    assert not provider.requests


async def test_bedrocks_newer_endpoint_is_anthropics_api(database_url: str, provider: Provider) -> None:
    """Its address replaces that of Anthropic's."""
    own = Settings(gateway_anthropic_url=f"{provider.url}/anthropic")
    async with (
        serving(own, database_url) as url,
        anthropic.AsyncAnthropicBedrockMantle(
            aws_region="us-east-1",
            api_key=KEY,
            base_url=f"{url}/gateway/anthropic",
            max_retries=0,
            default_headers=SESSION,
        ) as client,
    ):
        raw = await client.messages.with_raw_response.create(
            model="anthropic.claude-sonnet-4-5", max_tokens=9, messages=[{"role": "user", "content": "hi"}]
        )
    assert raw.headers["x-palimpsest-mode"] == "context"
    [asked] = provider.requests
    assert asked.path == "/anthropic/v1/messages"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_requested_compaction_is_taken_out_of_the_body(
    http: httpx.AsyncClient, provider: Provider, stream: bool
) -> None:
    """The beta is in the body here, and neither a pause nor a block can be written into a stream of frames."""
    edit = {"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 1_000}}
    asked = body(
        [{"role": "assistant" if number % 2 else "user", "content": "word " * 300} for number in range(9)],
        anthropic_beta=["compact-2026-01-12", "other"],
        context_management={"edits": [{**edit, "pause_after_compaction": True}]},
    )
    await http.put("/v1/sessions/s", json={"policy": NO_WAIT_POLICY})
    answer = await http.post(f"/gateway/s/s/bedrock{PATH}{'-with-response-stream' if stream else ''}", json=asked)
    assert answer.headers["x-palimpsest-mode"] == "context"
    [sent] = provider.calls()
    assert (sent.body["anthropic_beta"], "context_management" in sent.body, provider.refused) == (["other"], False, [])
    assert int(answer.headers["x-palimpsest-tokens-sent"]) <= 1_000
    if stream:
        assert answer.content == bytes(sent.answered)
    else:
        assert [one["type"] for one in answer.json()["content"]] == ["compaction", "text"]
