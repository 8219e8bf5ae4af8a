"""A fake provider on loopback for all three protocols, with and without streams.

It validates requests and answers from a script; when the script is empty it answers with `choose`, by default "Hello.".
"""

import asyncio
import base64
import json
import re
import struct
import zlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from tests.support import validators
from tests.support.loopback import listening

Json = dict[str, Any]
ALL_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]


@dataclass
class ProviderReply:
    """A scripted reply: text and calls (id, name, arguments), or an error with its status.

    `cut` breaks the stream off before the event of that index; `hold` delays the break until it is set, and
    `delay_until` delays the whole reply.
    """

    text: str = "Hello."
    calls: Sequence[tuple[str, str, Json]] = ()
    thinking: str | None = None
    status: int = 200
    error: Json | None = None
    raw: bytes | None = None
    """A body to send as it is, with the fields in `headers`."""
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: int | None = None
    hold: asyncio.Event | None = None
    delay_until: asyncio.Event | None = None


@dataclass
class ReceivedRequest:
    """A request as received."""

    method: str
    path: str
    query: str
    headers: list[tuple[str, str]]
    raw: bytes
    answered: bytearray = field(default_factory=bytearray)
    """The bytes of the response sent so far."""

    @property
    def body(self) -> Json:
        value: Json = json.loads(self.raw)
        return value

    def header(self, name: str) -> str | None:
        return next((value for one, value in self.headers if one == name), None)


@dataclass
class Provider:
    """The provider's URL, the requests it received, and its next replies.

    `refused` lists the invalid requests' faults; `dropped` is set when a client disconnects from a stream.
    """

    url: str = ""
    requests: list[ReceivedRequest] = field(default_factory=list)
    script: deque[ProviderReply] = field(default_factory=deque)
    refused: list[str] = field(default_factory=list)
    dropped: asyncio.Event = field(default_factory=asyncio.Event)
    numbers: int = 0
    pieces: int | None = None
    """The size in bytes of a stream's chunks; None sends each event as one chunk."""
    compress: bool = False
    cache: tuple[int, int] | None = (0, 0)
    """The cache reads and writes in Anthropic's usage; None leaves both fields out."""
    counts: bool = True
    """Whether chat completions report their usage."""
    compacts: bool = False
    """Whether it knows requests for a compaction within a call; otherwise it refuses them."""
    choose: Callable[[ReceivedRequest], ProviderReply] = lambda _: ProviderReply()
    """Return the reply when the script is empty."""

    def reset(self) -> None:
        """Return to the state of a new provider."""
        vars(self).update(vars(Provider(self.url)))

    def calls(self) -> list[ReceivedRequest]:
        """Return the requests that a model answers."""
        return [one for one in self.requests if shape(one.path) is not None]


class _Cut(Exception):
    """Raised to break a stream off."""


async def _serve(provider: Provider, request: Request) -> Response:
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in request.headers.raw]
    raw = await request.body()
    asked = ReceivedRequest(request.method, request.url.path, request.url.query, headers, raw)
    provider.requests.append(asked)
    make = shape(request.url.path)
    counts = request.url.path.endswith(("/count_tokens", "/count-tokens:rawPredict"))
    if make is None and not counts:
        return Response(raw or b"nothing", 207, {"x-request-id": "r1", "x-palimpsest-mode": "forged"})
    body = asked.body
    fault = _fault(request.url.path, body) or (None if provider.compacts else _compaction_fault(asked))
    if fault is not None:
        provider.refused.append(fault)
        return _json(asked, {"type": "error", "error": {"type": "invalid_request_error", "message": fault}}, 400)
    if counts:
        return _json(asked, {"input_tokens": len(raw) // 4})
    said = provider.script.popleft() if provider.script else provider.choose(asked)
    if said.delay_until is not None:
        await said.delay_until.wait()
    if said.raw is not None:
        return Response(said.raw, said.status, said.headers)
    if said.error is not None:
        return _json(asked, said.error, said.status)
    provider.numbers += 1
    assert make is not None
    whole, events = make({"model": "in the path", **body}, said, provider.numbers, max(1, len(raw) // 4))
    if not provider.counts:
        whole.pop("usage")
        events = [event for event in events if b'"usage": {' not in event]
    if "cache_read_input_tokens" in whole.get("usage", {}):
        del whole["usage"]["cache_read_input_tokens"], whole["usage"]["cache_creation_input_tokens"]
        if provider.cache is not None:
            names = ("cache_read_input_tokens", "cache_creation_input_tokens")
            whole["usage"] |= dict(zip(names, provider.cache, strict=True))
    framed = request.url.path.endswith("/invoke-with-response-stream")
    if not (framed or body.get("stream") or "alt=sse" in request.url.query):
        if provider.compress and "gzip" in (asked.header("accept-encoding") or ""):
            packer = zlib.compressobj(wbits=31)
            text = packer.compress(json.dumps(whole).encode()) + packer.flush()
            return Response(text, 200, {"content-encoding": "gzip", **_JSON})
        return _json(asked, whole)
    events = [chunk_frame(event.partition(b"data: ")[2].strip()) for event in events] if framed else events
    media = "application/vnd.amazon.eventstream" if framed else "text/event-stream"
    return StreamingResponse(_stream(provider, asked, said, events), 200, {"x-request-id": "r1"}, media)


_JSON = {"content-type": "application/json", "x-request-id": "r1"}


def _json(asked: ReceivedRequest, value: Json, status: int = 200) -> Response:
    asked.answered += json.dumps(value).encode()
    return Response(bytes(asked.answered), status, _JSON)


async def _stream(
    provider: Provider, asked: ReceivedRequest, said: ProviderReply, events: Sequence[bytes]
) -> AsyncIterator[bytes]:
    try:
        for number, event in enumerate(events):
            if said.cut == number:
                if said.hold is not None:
                    await said.hold.wait()
                raise _Cut
            size = provider.pieces or len(event)
            for start in range(0, len(event), size):
                asked.answered += event[start : start + size]
                yield event[start : start + size]
    except (asyncio.CancelledError, GeneratorExit):
        provider.dropped.set()
        raise


def _fault(path: str, body: Json) -> str | None:
    """Return why the provider refuses a request; None if it is valid."""
    kinds: Mapping[Any, str] = {anthropic: "anthropic", chat: "openai", gemini: "gemini"}
    kind = "anthropic" if "count_tokens" in path else kinds.get(shape(path), "responses")
    names = {"anthropic": ("system", "messages", "tools"), "openai": ("messages", "tools")}
    names["gemini"] = ("systemInstruction", "contents", "tools")
    check = {
        "anthropic": validators.check_anthropic,
        "openai": validators.check_openai,
        "responses": validators.check_openai_responses,
        "gemini": validators.check_gemini,
    }[kind]
    value = {name: body[name] for name in names.get(kind, ("input", "instructions", "tools")) if name in body}
    if isinstance(value.get("input"), str):
        value["input"] = [{"role": "user", "content": value["input"]}]
    try:
        check(value)
    except (AssertionError, KeyError, TypeError, ValueError) as fault:
        return repr(fault)
    return None


def _compaction_fault(asked: ReceivedRequest) -> str | None:
    """Return why a provider without compactions refuses a request for one; None if it has none."""
    field, beta = json.dumps(asked.body.get("context_management")), asked.header("anthropic-beta") or ""
    betas = [beta, *asked.body.get("anthropic_beta", [])]
    known = "compact" not in field and not any("compact" in one for one in betas)
    return None if known else f"unknown parameter: context_management {field} {betas}"


def _sse(value: Json, *, named: bool = True) -> bytes:
    name = f"event: {value['type']}\n" if named else ""
    return f"{name}data: {json.dumps(value, ensure_ascii=False)}\n\n".encode()


def frame(headers: Mapping[str, str], payload: bytes) -> bytes:
    """Return a frame of Amazon's event streams."""
    texts = [(name.encode(), value.encode()) for name, value in headers.items()]
    head = b"".join(struct.pack("!B", len(n)) + n + b"\x07" + struct.pack("!H", len(v)) + v for n, v in texts)
    lengths = struct.pack("!II", 16 + len(head) + len(payload), len(head))
    beginning = lengths + struct.pack("!I", zlib.crc32(lengths)) + head + payload
    return beginning + struct.pack("!I", zlib.crc32(beginning))


def chunk_frame(event: bytes) -> bytes:
    """Return the frame of an event of a reply, as Bedrock sends it."""
    headers = {":event-type": "chunk", ":content-type": "application/json", ":message-type": "event"}
    return frame(headers, json.dumps({"bytes": base64.b64encode(event).decode(), "p": "abc"}).encode())


def _halves(text: str) -> Iterator[str]:
    yield from filter(None, (text[: len(text) // 2], text[len(text) // 2 :]))


def anthropic(body: Json, said: ProviderReply, number: int, tokens: int) -> tuple[Json, list[bytes]]:
    """Return a message and its stream's events."""
    content: list[Json] = []
    if said.thinking is not None:
        content.append({"type": "thinking", "thinking": said.thinking, "signature": f"c2ln{number}"})
    if said.text:
        content.append({"type": "text", "text": said.text})
    content += [{"type": "tool_use", "id": id, "name": name, "input": given} for id, name, given in said.calls]
    stop = "tool_use" if said.calls else "end_turn"
    usage = {"input_tokens": tokens, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0, "output_tokens": 7}
    whole = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": body["model"], "content": content}
    whole |= {"stop_reason": stop, "stop_sequence": None, "usage": usage}
    begun = {**whole, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
    events = [_sse({"type": "message_start", "message": begun}), _sse({"type": "ping"})]
    for index, block in enumerate(content):
        events += _anthropic_block(index, block)
    events.append(_sse({"type": "message_delta", "delta": {"stop_reason": stop}, "usage": {"output_tokens": 7}}))
    return whole, [*events, _sse({"type": "message_stop"})]


def _anthropic_block(index: int, block: Json) -> list[bytes]:
    deltas: list[Json]
    if block["type"] == "text":
        begun: Json = {"type": "text", "text": ""}
        deltas = [{"type": "text_delta", "text": half} for half in _halves(block["text"])]
    elif block["type"] == "thinking":
        begun = {"type": "thinking", "thinking": "", "signature": ""}
        deltas = [{"type": "thinking_delta", "thinking": half} for half in _halves(block["thinking"])]
        deltas.append({"type": "signature_delta", "signature": block["signature"]})
    else:
        begun = {**block, "input": {}}
        text = json.dumps(block["input"])
        deltas = [{"type": "input_json_delta", "partial_json": half} for half in ("", *_halves(text))]
    start = _sse({"type": "content_block_start", "index": index, "content_block": begun})
    middle = [_sse({"type": "content_block_delta", "index": index, "delta": delta}) for delta in deltas]
    return [start, *middle, _sse({"type": "content_block_stop", "index": index})]


def chat(body: Json, said: ProviderReply, number: int, tokens: int) -> tuple[Json, list[bytes]]:
    """Return a chat completion and its stream's events."""
    calls = [
        {"id": id, "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}
        for id, name, given in said.calls
    ]
    stop = "tool_calls" if calls else "stop"
    message: Json = {"role": "assistant", "content": said.text or None, "refusal": None}
    if calls:
        message["tool_calls"] = calls
    head: Json = {"id": f"chatcmpl-{number}", "created": 1, "model": body["model"]}
    usage = {"prompt_tokens": tokens, "completion_tokens": 7, "total_tokens": tokens + 7}
    choice = {"index": 0, "finish_reason": stop, "message": message}
    whole = {**head, "object": "chat.completion", "choices": [choice], "usage": usage}
    deltas: list[Json] = [{"role": "assistant", "content": ""}, *({"content": half} for half in _halves(said.text))]
    for index, call in enumerate(calls):
        function = call["function"]
        begun = {"index": index, **call, "function": {**function, "arguments": ""}}
        deltas.append({"tool_calls": [begun]})
        halves = _halves(function["arguments"])
        deltas += [{"tool_calls": [{"index": index, "function": {"arguments": half}}]} for half in halves]
    wants = (body.get("stream_options") or {}).get("include_usage") is True
    chunk = {**head, "object": "chat.completion.chunk", **({"usage": None} if wants else {})}
    chunks: list[Json] = [{**chunk, "choices": [{"index": 0, "delta": d, "finish_reason": None}]} for d in deltas]
    chunks.append({**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": stop}]})
    if wants:
        chunks.append({**chunk, "choices": [], "usage": usage})
    return whole, [*(_sse(one, named=False) for one in chunks), b"data: [DONE]\n\n"]


def responses(body: Json, said: ProviderReply, number: int, tokens: int) -> tuple[Json, list[bytes]]:
    """Return a response and its stream's events."""
    output: list[Json] = []
    if said.thinking is not None:
        output.append({"type": "reasoning", "id": f"rs_{number}", "summary": [], "encrypted_content": said.thinking})
    if said.text:
        content = [{"type": "output_text", "text": said.text, "annotations": []}]
        item = {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed"}
        output.append({**item, "content": content})
    for index, (call_id, name, given) in enumerate(said.calls):
        item = {"type": "function_call", "id": f"fc_{number}_{index}", "call_id": call_id, "name": name}
        output.append({**item, "arguments": json.dumps(given), "status": "completed"})
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    usage = {"input_tokens": tokens, "output_tokens": 7, "total_tokens": tokens + 7, **details}
    whole: Json = {"id": f"resp_{number}", "object": "response", "created_at": 1, "model": body["model"]}
    whole |= {"status": "completed", "output": output, "usage": usage, "parallel_tool_calls": True, "tools": []}
    whole |= {"tool_choice": "auto", "error": None, "incomplete_details": None, "instructions": None, "metadata": {}}
    begun = {**whole, "status": "in_progress", "output": [], "usage": None}
    events: list[Json] = [{"type": "response.created", "response": begun}]
    for index, item in enumerate(output):
        events.append({"type": "response.output_item.added", "output_index": index, "item": {**item, "content": []}})
        if item["type"] == "message":
            where = {"item_id": item["id"], "output_index": index, "content_index": 0}
            part = {"type": "output_text", "text": "", "annotations": []}
            events.append({"type": "response.content_part.added", **where, "part": part})
            delta = {"type": "response.output_text.delta", **where, "logprobs": []}
            events += [{**delta, "delta": half} for half in _halves(item["content"][0]["text"])]
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    events.append({"type": "response.completed", "response": whole})
    return whole, [_sse({**event, "sequence_number": n}) for n, event in enumerate(events)]


def gemini(body: Json, said: ProviderReply, number: int, tokens: int) -> tuple[Json, list[bytes]]:
    """Return a response of Gemini's, and its stream's events: each half of the text is a content of its own."""
    parts: list[Json] = [] if said.thinking is None else [{"text": said.thinking, "thought": True}]
    texts: list[Json] = [{"text": half} for half in _halves(said.text)]
    calls: list[Json] = [{"functionCall": {"name": name, "args": given}} for _, name, given in said.calls]
    if calls:
        calls[0]["thoughtSignature"] = "c2lnbmVk"
    head: Json = {"modelVersion": body["model"], "responseId": f"resp_{number}"}
    counted = {"promptTokenCount": tokens, "candidatesTokenCount": 5, "thoughtsTokenCount": 2}
    usage = {"usageMetadata": {**counted, "totalTokenCount": tokens + 7}}

    def answer(parts: list[Json], **more: Any) -> Json:
        return {"candidates": [{"content": {"role": "model", "parts": parts}, "index": 0, **more}], **usage, **head}

    text: list[Json] = [{"text": said.text}] if said.text else []
    chunks = [*parts, *texts, *calls]
    events = [answer([part]) for part in chunks[:-1]] + [answer(chunks[-1:], finishReason="STOP")]
    return answer([*parts, *text, *calls], finishReason="STOP"), [_sse(one, named=False) for one in events]


STREAMS = {"/v1/messages": anthropic, "/v1/chat/completions": chat, "/v1/responses": responses}
_OTHERS = {
    r"/openai/(deployments/[^/]+|v1)/chat/completions": "/v1/chat/completions",
    r"/openai/(v1/)?responses": "/v1/responses",
    r"/model/.+/invoke(-with-response-stream)?": "/v1/messages",
    r"/v1/projects/p/locations/l/publishers/anthropic/models/[^/:]+:(rawPredict|streamRawPredict)": "/v1/messages",
}
"""Paths of other providers for the same shapes."""


def shape(path: str) -> Callable[[Json, ProviderReply, int, int], tuple[Json, list[bytes]]] | None:
    """Return the maker of the replies of a path; None if no model answers it."""
    if re.fullmatch(r".*/models/[^/:]+:(generateContent|streamGenerateContent)", path):
        return gemini
    return STREAMS.get(next((same for one, same in _OTHERS.items() if re.fullmatch(one, path)), path))


@asynccontextmanager
async def serving_provider() -> AsyncIterator[Provider]:
    """Serve a provider until the block ends."""
    provider = Provider()

    async def endpoint(request: Request) -> Response:
        return await _serve(provider, request)

    app = Starlette(routes=[Route("/{path:path}", endpoint, methods=ALL_METHODS)])
    async with listening(app) as provider.url:
        yield provider
