"""Four providers' APIs on loopback, whole and streamed; they check requests, and respond as a test specifies."""

import base64
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from tests.support import validators
from tests.support.loopback import listening

Json = dict[str, Any]
BYTES_PER_TOKEN = 3.5
SIGNED = b"\xfb\xff\xfe %d %d"
"""A signature by the numbers of the response and the call; in these bytes the two alphabets of base64 differ."""


@dataclass(frozen=True)
class ScriptedReply:
    """Text, and tool calls by name with their arguments. A stream of it breaks off after `breaks_after` pieces."""

    text: str = ""
    calls: Sequence[tuple[str, Any]] = ()
    breaks_after: int | None = None

    @property
    def pieces(self) -> list[str]:
        words = self.text.split(" ")
        return [word if at == 0 else " " + word for at, word in enumerate(words)] if self.text else []


@dataclass(frozen=True)
class ScriptedError:
    """An error of the provider; in a stream of responses it is an event."""

    status: int
    message: str
    code: str = "invalid_request_error"
    in_stream: bool = False


TOO_LONG = ScriptedError(400, "This model's maximum context length is 8000 tokens.", "context_length_exceeded")
ANTHROPIC_TOO_LONG = ScriptedError(400, "prompt is too long: 9001 tokens > 8000 maximum")


@dataclass
class Provider:
    """A stand-in's URL, its requests, and `think`, which maps a request's body to a response."""

    think: Callable[[Json], ScriptedReply | ScriptedError]
    url: str = ""
    requests: list[Json] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that make the providers' SDKs use this stand-in."""
        return {
            "OPENAI_BASE_URL": f"{self.url}/v1",
            "OPENAI_API_KEY": "a key",
            "ANTHROPIC_BASE_URL": self.url,
            "ANTHROPIC_API_KEY": "a key",
            "GOOGLE_GEMINI_BASE_URL": self.url,
            "GEMINI_API_KEY": "a key",
        }

    def asked(self, body: Json) -> ScriptedReply | ScriptedError:
        self.requests.append(body)
        return self.think(body)

    @property
    def number(self) -> int:
        return len(self.requests)

    @property
    def size(self) -> int:
        return int(len(json.dumps(self.requests[-1])) / BYTES_PER_TOKEN)


def scripted(*answers: ScriptedReply | ScriptedError) -> Callable[[Json], ScriptedReply | ScriptedError]:
    """Return a `think` with the given responses in order, the last one repeated."""
    left = list(answers)
    return lambda _: left.pop(0) if len(left) > 1 else left[0]


def polite(body: Json) -> ScriptedReply:
    """Answer the pages' questions: call the offered tool, then return its result as text."""
    items = body.get("messages") or body.get("input") or body["contents"]
    users = [json.dumps(item) for item in items if item.get("role") == "user"]
    if "17 times 4711" in users[-1]:
        done = items[-1].get("role") == "tool" or items[-1].get("type") == "function_call_output"
        return ScriptedReply("It is 80,087.") if done else ScriptedReply(calls=[("multiply", {"a": 17, "b": 4711})])
    return ScriptedReply("Hello there.")


@asynccontextmanager
async def provider(think: Callable[[Json], ScriptedReply | ScriptedError]) -> AsyncIterator[Provider]:
    """Serve while the block lasts."""
    state = Provider(think)
    app = FastAPI()

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        body = await request.json()
        validators.check_openai({key: body[key] for key in ("messages", "tools") if key in body})
        said = state.asked(body)
        if isinstance(said, ScriptedError):
            error = {"message": said.message, "type": "invalid_request_error", "code": said.code, "param": None}
            return JSONResponse({"error": error}, said.status)
        if body.get("stream"):
            return sse(chat_chunks(state, said, body), done="data: [DONE]\n\n")
        return JSONResponse(chat_whole(state, said))

    @app.post("/v1/responses")
    async def responses(request: Request) -> Response:
        body = await request.json()
        validators.check_openai_responses({key: body[key] for key in ("input", "tools") if key in body})
        said = state.asked(body)
        if isinstance(said, ScriptedError):
            error = {"message": said.message, "type": "invalid_request_error", "code": said.code, "param": None}
            if said.in_stream:
                failed = response_whole(state, ScriptedReply()) | {"status": "failed", "error": error}
                return sse(
                    iter(
                        [
                            {
                                "type": "response.created",
                                "sequence_number": 0,
                                "response": response_whole(state, ScriptedReply()),
                            },
                            {"type": "response.failed", "sequence_number": 1, "response": failed},
                        ]
                    )
                )
            return JSONResponse({"error": error}, said.status)
        return sse(response_events(state, said)) if body.get("stream") else JSONResponse(response_whole(state, said))

    @app.post("/v1/messages")
    async def messages(request: Request) -> Response:
        body = await request.json()
        validators.check_anthropic({key: body[key] for key in ("system", "messages", "tools") if key in body})
        said = state.asked(body)
        if isinstance(said, ScriptedError):
            error = {"type": "error", "error": {"type": said.code, "message": said.message}}
            return JSONResponse(error, said.status)
        return (
            sse(message_events(state, said), named=True)
            if body.get("stream")
            else JSONResponse(message_whole(state, said))
        )

    @app.post("/v1/models/{call}")  # google-genai 3
    @app.post("/v1beta/models/{call}")
    async def contents(call: str, request: Request) -> Response:
        body = await request.json()
        model, _, method = call.partition(":")
        validators.check_gemini(said_by_gemini(body))
        said = state.asked({"model": model, **body})
        if isinstance(said, ScriptedError):
            error = {"code": said.status, "message": said.message, "status": "INVALID_ARGUMENT"}
            return JSONResponse({"error": error}, said.status)
        return (
            sse(content_chunks(state, said))
            if method.startswith("stream")
            else JSONResponse(content_whole(state, said))
        )

    async with listening(app) as state.url:
        yield state


def sse(events: Iterator[Json | None], *, named: bool = False, done: str = "") -> Response:
    """Return events as a stream; None breaks it off."""

    async def lines() -> AsyncIterator[str]:
        for event in events:
            if event is None:
                raise ConnectionAbortedError("the stream breaks off, as the test wants it")
            head = f"event: {event['type']}\n" if named else ""
            yield f"{head}data: {json.dumps(event)}\n\n"
        yield done

    return StreamingResponse(lines(), media_type="text/event-stream")


def chat_whole(state: Provider, said: ScriptedReply) -> Json:
    message: Json = {"role": "assistant", "content": said.text or None, "refusal": None}
    if said.calls:
        message["tool_calls"] = [
            {
                "id": f"call_{state.number}_{at}",
                "type": "function",
                "function": {"name": name, "arguments": text(given)},
            }
            for at, (name, given) in enumerate(said.calls)
        ]
    stop = "tool_calls" if said.calls else "stop"
    return {
        "id": f"chatcmpl-{state.number}",
        "object": "chat.completion",
        "created": 1,
        "model": "stand-in",
        "choices": [{"index": 0, "message": message, "finish_reason": stop, "logprobs": None}],
        "usage": chat_usage(state),
    }


def chat_usage(state: Provider) -> Json:
    return {
        "prompt_tokens": state.size,
        "completion_tokens": 7,
        "total_tokens": state.size + 7,
        "prompt_tokens_details": {"cached_tokens": 3},
    }


def chat_chunks(state: Provider, said: ScriptedReply, body: Mapping[str, Any]) -> Iterator[Json | None]:
    whole = chat_whole(state, said)
    base = {"id": whole["id"], "object": "chat.completion.chunk", "created": 1, "model": "stand-in"}

    def chunk(delta: Json, stop: str | None = None) -> Json:
        return {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": stop}]}

    yield chunk({"role": "assistant", "content": ""})
    for at, piece in enumerate(said.pieces):
        if at == said.breaks_after:
            yield None
        yield chunk({"content": piece})
    for at, call in enumerate(whole["choices"][0]["message"].get("tool_calls", ())):
        head = {**call, "index": at, "function": {**call["function"], "arguments": ""}}
        yield chunk({"tool_calls": [head]})
        arguments = call["function"]["arguments"]
        for part in (arguments[:3], arguments[3:]):
            yield chunk({"tool_calls": [{"index": at, "function": {"arguments": part}}]})
    yield chunk({}, whole["choices"][0]["finish_reason"])
    if (body.get("stream_options") or {}).get("include_usage"):
        yield {**base, "choices": [], "usage": whole["usage"]}


def response_whole(state: Provider, said: ScriptedReply) -> Json:
    output: list[Json] = [
        {
            "type": "function_call",
            "id": f"fc_{state.number}_{at}",
            "call_id": f"call_{state.number}_{at}",
            "name": name,
            "arguments": text(given),
            "status": "completed",
        }
        for at, (name, given) in enumerate(said.calls)
    ]
    if said.text:
        content = [{"type": "output_text", "text": said.text, "annotations": []}]
        item = {"type": "message", "id": f"msg_{state.number}", "role": "assistant", "status": "completed"}
        output.insert(0, item | {"content": content})
    return {
        "id": f"resp_{state.number}",
        "object": "response",
        "created_at": 1,
        "model": "stand-in",
        "status": "completed",
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": state.size,
            "input_tokens_details": {"cached_tokens": 3},
            "output_tokens": 7,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": state.size + 7,
        },
    }


def response_events(state: Provider, said: ScriptedReply) -> Iterator[Json | None]:
    whole = response_whole(state, said)
    events: list[Json | None] = [
        {"type": "response.created", "response": {**whole, "output": [], "status": "in_progress"}}
    ]
    for index, item in enumerate(whole["output"]):
        place = {"output_index": index, "item_id": item["id"]}
        events.append({"type": "response.output_item.added", "output_index": index, "item": item})
        if item["type"] == "message":
            for at, piece in enumerate(said.pieces):
                if at == said.breaks_after:
                    events.append(None)
                events.append(
                    {"type": "response.output_text.delta", "content_index": 0, "delta": piece, "logprobs": [], **place}
                )
        else:
            events.append({"type": "response.function_call_arguments.delta", "delta": item["arguments"], **place})
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    events.append({"type": "response.completed", "response": whole})
    for number, event in enumerate(events):
        yield None if event is None else {**event, "sequence_number": number}


def message_whole(state: Provider, said: ScriptedReply) -> Json:
    content: list[Json] = [{"type": "text", "text": said.text}] if said.text else []
    content += [
        {"type": "tool_use", "id": f"toolu_{state.number}_{at}", "name": name, "input": given}
        for at, (name, given) in enumerate(said.calls)
    ]
    return {
        "id": f"msg_{state.number}",
        "type": "message",
        "role": "assistant",
        "model": "stand-in",
        "content": content,
        "stop_reason": "tool_use" if said.calls else "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": state.size,
            "output_tokens": 7,
            "cache_read_input_tokens": 3,
            "cache_creation_input_tokens": 2,
        },
    }


def message_events(state: Provider, said: ScriptedReply) -> Iterator[Json | None]:
    whole = message_whole(state, said)
    yield {"type": "message_start", "message": {**whole, "content": [], "stop_reason": None}}
    for index, block in enumerate(whole["content"]):
        if block["type"] == "text":
            yield {"type": "content_block_start", "index": index, "content_block": {"type": "text", "text": ""}}
            for at, piece in enumerate(said.pieces):
                if at == said.breaks_after:
                    yield None
                yield {"type": "content_block_delta", "index": index, "delta": {"type": "text_delta", "text": piece}}
        else:
            yield {"type": "content_block_start", "index": index, "content_block": {**block, "input": {}}}
            written = text(block["input"])
            for part in (written[:3], written[3:]):
                delta = {"type": "input_json_delta", "partial_json": part}
                yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    delta = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 7}}
    yield {"type": "message_stop"}


def said_by_gemini(body: Json) -> Json:
    """Return a request's content with the API's field names, since its SDK writes some in another notation."""

    def renamed(value: Any) -> Any:
        if isinstance(value, list):
            return [renamed(one) for one in value]
        if not isinstance(value, dict):
            return value
        named = {"mime_type": "mimeType", "file_uri": "fileUri", "parameters_json_schema": "parametersJsonSchema"}
        return {named.get(name, name): renamed(child) for name, child in value.items()}

    return {name: renamed(body[name]) for name in ("systemInstruction", "contents", "tools") if name in body}


def signature(state: Provider, at: int) -> str:
    """Return a signature in Gemini's form."""
    return base64.b64encode(SIGNED % (state.number, at)).decode()


def content_whole(state: Provider, said: ScriptedReply) -> Json:
    parts: list[Json] = [{"text": said.text}] if said.text else []
    parts += [
        {"functionCall": {"name": name, "args": given}, **({} if at else {"thoughtSignature": signature(state, at)})}
        for at, (name, given) in enumerate(said.calls)
    ]
    return content_chunk(state, parts, "STOP")


def content_chunk(state: Provider, parts: Sequence[Json], stop: str | None = None) -> Json:
    counted = {"promptTokenCount": state.size, "cachedContentTokenCount": 3}
    candidate: Json = {"content": {"role": "model", "parts": parts}, "index": 0}
    if stop:
        candidate["finishReason"] = stop
        counted |= {"candidatesTokenCount": 5, "thoughtsTokenCount": 2}
    return {"candidates": [candidate], "usageMetadata": counted, "modelVersion": "stand-in"}


def content_chunks(state: Provider, said: ScriptedReply) -> Iterator[Json | None]:
    """Yield text in pieces, after a thought; calls whole; and a text's signature at the end, in a part without text."""
    yield content_chunk(state, [{"text": "Let me see.", "thought": True}])
    for at, piece in enumerate(said.pieces):
        if at == said.breaks_after:
            yield None
        yield content_chunk(state, [{"text": piece}])
    calls = content_whole(state, ScriptedReply(calls=said.calls))["candidates"][0]["content"]["parts"]
    yield content_chunk(state, calls or [{"text": "", "thoughtSignature": signature(state, 0)}], "STOP")


def text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)
