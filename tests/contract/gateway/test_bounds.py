"""Upstream bodies of excessive size: the client gets every byte, and the process stays small."""

import json
import zlib
from typing import Any

import httpx
import pytest

from app.core.policy.overflow import classify
from app.core.wire.bodies import JSON_BYTES_MAX
from tests.support.bombs import Memory, bomb
from tests.support.gateways import GatewayReader
from tests.support.provider import STREAMS, Provider, ProviderReply

pytestmark = pytest.mark.wing("gateway")

URLS = {
    "/v1/messages": "/gateway/s/s/anthropic/v1/messages",
    "/v1/chat/completions": "/gateway/s/s/openai/v1/chat/completions",
    "/v1/responses": "/gateway/s/s/openai/v1/responses",
}
EVENT_STREAM = {"content-type": "text/event-stream"}
GROWTH_MAX = 250_000_000


def request_body(path: str, **more: Any) -> dict[str, Any]:
    field = "input" if path == "/v1/responses" else "messages"
    return {"model": "m", "max_tokens": 9, field: [{"role": "user", "content": "hi"}], **more}


async def raw_bytes(http: httpx.AsyncClient, path: str, **more: Any) -> tuple[httpx.Response, bytes]:
    async with http.stream("POST", URLS[path], json=request_body(path, **more)) as answer:
        return answer, b"".join([piece async for piece in answer.aiter_raw()])


@pytest.mark.wing("audit")
@pytest.mark.parametrize("code", [400, 200])
@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
async def test_a_body_that_unpacks_to_a_gigabyte_is_forwarded_without_being_held(
    http: httpx.AsyncClient, provider: Provider, behind: GatewayReader, code: int, kind: str
) -> None:
    body = bomb()
    provider.script.append(
        ProviderReply(status=code, raw=body, headers={"content-encoding": "gzip", "content-type": kind})
    )
    memory = Memory()
    answer, raw = await raw_bytes(http, "/v1/messages", stream=kind != "application/json")
    record = await behind.reported(http, answer.headers["x-palimpsest-call"], answer.headers["x-palimpsest-line"])
    assert (answer.status_code, raw) == (code, body)
    assert answer.headers["content-encoding"] == "gzip"
    assert memory.growth() < GROWTH_MAX
    error = record["outcome"]["error"]
    if code == 400:
        assert error["status"] == 400
        assert error["message"].startswith('{"error": {"message": "xxx')
    else:
        assert "not read to its end" in error["message"]


@pytest.mark.wing("audit")
@pytest.mark.parametrize("encoding", ["br", "gzip", "gzip, gzip"])
@pytest.mark.parametrize("code", [400, 200])
async def test_a_body_that_cannot_be_decoded_is_forwarded(
    http: httpx.AsyncClient, provider: Provider, behind: GatewayReader, encoding: str, code: int
) -> None:
    provider.script.append(ProviderReply(status=code, raw=b"no such thing", headers={"content-encoding": encoding}))
    answer, raw = await raw_bytes(http, "/v1/messages")
    assert (answer.status_code, raw, answer.headers["content-encoding"]) == (code, b"no such thing", encoding)
    record = await behind.reported(http, answer.headers["x-palimpsest-call"], answer.headers["x-palimpsest-line"])
    assert record["outcome"]["error"]


async def test_a_compressed_or_long_error_is_read(http: httpx.AsyncClient, provider: Provider) -> None:
    """The overflow in the error is found, and the call is retried."""
    text = json.dumps({"error": {"message": "prompt is too long: 9000 tokens > 8000 maximum", "rest": "x" * 500_000}})
    packer = zlib.compressobj(wbits=31)
    packed = packer.compress(text.encode()) + packer.flush()
    await http.put("/v1/sessions/s", json={"policy": {"summarize": {"enabled": False}}})
    for raw, fields in ((packed, {"content-encoding": "gzip"}), (text.encode(), {})):
        provider.requests.clear()
        provider.script.append(ProviderReply(status=400, raw=raw, headers=fields))
        answer = await http.post(URLS["/v1/messages"], json=request_body("/v1/messages"))
        assert answer.status_code == 200, answer.text
        assert len(provider.requests) == 2


@pytest.mark.wing("audit")
@pytest.mark.parametrize("path", sorted(URLS))
@pytest.mark.parametrize("large", ["z" * JSON_BYTES_MAX, "z" * 3 * JSON_BYTES_MAX, [[]] * 60_000], ids=len)
async def test_an_event_over_the_limit_is_forwarded_and_the_reply_is_partial(
    http: httpx.AsyncClient, provider: Provider, behind: GatewayReader, path: str, large: Any
) -> None:
    _, events = STREAMS[path]({"model": "m"}, ProviderReply("Hello there, you."), 1, 10)
    event = b"event: x\r\ndata: " + json.dumps({"type": "x", "y": large}).encode() + b"\r\n\r\n"
    stream = b"".join([*events[:4], event, *events[4:]])
    provider.script.append(ProviderReply(raw=stream, headers=EVENT_STREAM))
    answer, raw = await raw_bytes(http, path, stream=True, stream_options={"include_usage": True})
    assert raw == stream
    record = await behind.reported(http, answer.headers["x-palimpsest-call"], answer.headers["x-palimpsest-line"])
    assert "an event of it" in record["outcome"]["error"]["message"]
    [_, said] = await behind.logged(http, 2)
    assert said["metadata"] == {"partial": True}


@pytest.mark.wing("audit")
@pytest.mark.parametrize("path", sorted(URLS))
async def test_a_response_over_the_limit_is_forwarded_and_not_parsed(
    http: httpx.AsyncClient, provider: Provider, behind: GatewayReader, path: str
) -> None:
    raw = json.dumps({"choices": [], "content": "x" * JSON_BYTES_MAX}).encode()
    provider.script.append(ProviderReply(raw=raw, headers={"content-type": "application/json"}))
    answer, found = await raw_bytes(http, path)
    assert found == raw
    record = await behind.reported(http, answer.headers["x-palimpsest-call"], answer.headers["x-palimpsest-line"])
    assert f"more than {JSON_BYTES_MAX} bytes" in record["outcome"]["error"]["message"]
    assert classify(record["outcome"]["error"]["message"]) is None


@pytest.mark.wing("audit")
async def test_a_stream_that_cannot_be_parsed_reaches_the_client(
    http: httpx.AsyncClient, provider: Provider, behind: GatewayReader
) -> None:
    nested = b'{"a":' * 950 + b"1" + b"}" * 950
    stream = b'data: {"choices":[{"index":0,"delta":' + nested + b"}]}\n\ndata: [DONE]\n\n"
    provider.script.append(ProviderReply(raw=stream, headers=EVENT_STREAM))
    answer, raw = await raw_bytes(http, "/v1/chat/completions", stream=True, stream_options={"include_usage": True})
    assert raw == stream
    await behind.reported(http, answer.headers["x-palimpsest-call"], answer.headers["x-palimpsest-line"])
