"""Fake summarizing models of Anthropic and OpenAI on loopback, with scripted behaviour.

Each request takes one behaviour from a queue, or `default` when the queue is empty.
"""

import asyncio
import gzip
import json
import re
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from fastapi import FastAPI, Request, Response

from app.core.compaction.prompt import PLANNED, STRUCTURED, TURN_START
from tests.support import validators
from tests.support.loopback import listening

Provider = Literal["anthropic", "openai"]


@dataclass(frozen=True)
class ReceivedRequest:
    """A request as received."""

    provider: Provider
    model: str
    system: str
    prompt: str
    max_tokens: int
    temperature: float | None
    body: Mapping[str, Any]
    headers: Mapping[str, str]

    def listed(self, tag: str) -> list[str]:
        """Return the items of a tagged list in the prompt, such as `constraints`."""
        found = re.search(rf"<{tag}>\n(.*?)\n</{tag}>", self.prompt, re.DOTALL)
        return [line.removeprefix("- ") for line in found[1].splitlines()] if found else []


def is_prefix(asked: ReceivedRequest) -> bool:
    """Return whether a request is for the first part of a split turn."""
    return all(f"## {name}" in asked.system for name in TURN_START.sections)


@dataclass(frozen=True)
class Reply:
    """A reply, independent of the provider's protocol."""

    text: str = ""
    stop: Literal["end", "length", "refusal"] = "end"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    raw: str | bytes | None = None
    """A whole body, sent instead of the protocol's."""


@dataclass(frozen=True)
class Behaviour:
    """A way to answer a request; it is reused while `stays` returns true for the request."""

    answer: Callable[[ReceivedRequest], Awaitable[Reply]]
    stays: Callable[[ReceivedRequest], bool] = lambda asked: False


def a_summary(asked: ReceivedRequest) -> str:
    """Return a short valid summary of the requested kind with all required items."""
    is_planned = "### Not Started" in asked.system
    names = TURN_START.sections if is_prefix(asked) else PLANNED.sections if is_planned else STRUCTURED.sections
    below = ("Done", "In Progress", "Not Started", "Blocked")
    held = {
        "Goal": ["Finish what was asked."],
        "Original Request": ["Finish what was asked."],
        "Constraints & Preferences": asked.listed("constraints"),
        "Critical Context": asked.listed("identifiers"),
        "Context for Suffix": asked.listed("constraints") + asked.listed("identifiers"),
    }
    return "\n".join(
        f"{'###' if name in below else '##'} {name}\n" + "\n".join(f"- {item}" for item in held.get(name) or ["(none)"])
        for name in names
    )


def ok(text: str | Callable[[ReceivedRequest], str] = a_summary) -> Behaviour:
    """Answer with a text, or with what a function returns for the request."""
    return Behaviour(lambda asked: _reply(Reply(text if isinstance(text, str) else text(asked))))


def by_part(history: Behaviour, prefix: Behaviour) -> Behaviour:
    """Use one behaviour for the history before a split turn and another for the turn's first part."""
    return Behaviour(lambda asked: (prefix if is_prefix(asked) else history).answer(asked))


def slow(until: asyncio.Event, then: Behaviour | None = None) -> Behaviour:
    """Answer once the event is set."""

    async def answer(asked: ReceivedRequest) -> Reply:
        await until.wait()
        return await (then or ok()).answer(asked)

    return Behaviour(answer)


def status(code: int, *, retry_after: float | str | None = None, message: str = "it did not work") -> Behaviour:
    """Fail with an HTTP status and the error in the provider's form."""
    headers = {} if retry_after is None else {"retry-after": str(retry_after)}
    return Behaviour(lambda asked: _reply(Reply(message, status=code, headers=headers)))


def cut_off(text: str = "## Goal\n- Finish what") -> Behaviour:
    """Stop at the token limit."""
    return Behaviour(lambda asked: _reply(Reply(text, stop="length")))


def refusal(text: str = "I can't help with that.") -> Behaviour:
    """Refuse with the provider's stop reason or field for refusals."""
    return Behaviour(lambda asked: _reply(Reply(text, stop="refusal")))


def empty() -> Behaviour:
    """Answer with an empty text."""
    return ok("")


def error_text(text: str = "Error: upstream connect error or disconnect before headers") -> Behaviour:
    """Answer with an error message in place of a summary."""
    return ok(text)


def body(
    raw: str | bytes, code: int = 200, content_type: str = "application/json", encoding: str = "identity"
) -> Behaviour:
    """Answer with a body that does not follow the protocol."""
    headers = {"content-type": content_type, "content-encoding": encoding}
    return Behaviour(lambda asked: _reply(Reply(status=code, raw=raw, headers=headers)))


def context_too_long(chars: int, named: int | None = None) -> Behaviour:
    """Fail with the provider's overflow error until a prompt has fewer than `chars` characters, then answer it.

    The error names a window of `named` tokens, by default of `chars`.
    """

    def too_long(asked: ReceivedRequest) -> bool:
        return len(asked.prompt) >= chars

    async def answer(asked: ReceivedRequest) -> Reply:
        if not too_long(asked):
            return await ok().answer(asked)
        message = {
            "anthropic": f"prompt is too long: {len(asked.prompt)} tokens > {named or chars} maximum",
            "openai": f"This model's maximum context length is {named or chars} tokens. Please reduce the length.",
        }
        return Reply(message[asked.provider], status=400)

    return Behaviour(answer, too_long)


def rejecting(parameter: str) -> Behaviour:
    """Fail until a request leaves the parameter out, then answer it."""

    def sent(asked: ReceivedRequest) -> bool:
        return parameter in asked.body

    async def answer(asked: ReceivedRequest) -> Reply:
        if not sent(asked):
            return await ok().answer(asked)
        message = {
            "anthropic": f"`{parameter}` is deprecated for this model.",
            "openai": f"Unsupported parameter: '{parameter}' is not supported with this model.",
        }
        return Reply(message[asked.provider], status=400)

    return Behaviour(answer, sent)


@dataclass
class Summarizers:
    """The server's URL, behaviours and received requests."""

    url: str = ""
    default: Behaviour = field(default_factory=ok)
    requests: list[ReceivedRequest] = field(default_factory=list)
    compress: bool = False
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _queue: deque[Behaviour] = field(default_factory=deque)
    _closed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def anthropic_url(self) -> str:
        """The base URL for Anthropic's client."""
        return self.url

    @property
    def openai_url(self) -> str:
        """The base URL for OpenAI's client."""
        return f"{self.url}/v1"

    def queue(self, *behaviours: Behaviour) -> None:
        """Queue behaviours, one for each of the next requests."""
        self._queue.extend(behaviours)

    def never(self) -> Behaviour:
        """Return a behaviour that never answers before the servers close."""
        return slow(self._closed)

    def reset(self) -> None:
        """Reset the behaviours and the received requests; requests in progress continue."""
        self._queue.clear()
        self.requests.clear()
        self.default, self.compress = ok(), False

    async def wait_for_requests(self, times: int) -> None:
        """Wait until `times` requests have been received in all."""
        async with self.changed:
            await self.changed.wait_for(lambda: len(self.requests) >= times)

    def parts(self) -> tuple[ReceivedRequest, ReceivedRequest]:
        """Return the two requests of a split turn, which come in any order: for its history and for its first part."""
        history, prefix = sorted(self.requests, key=is_prefix)
        return history, prefix

    async def _answer(self, asked: ReceivedRequest) -> Reply:
        async with self.changed:
            self.requests.append(asked)
            self.changed.notify_all()
        behaviour = self._queue[0] if self._queue else self.default
        if self._queue and not behaviour.stays(asked):
            self._queue.popleft()
        return await behaviour.answer(asked)


@asynccontextmanager
async def summarizers() -> AsyncIterator[Summarizers]:
    """Serve the models until the block ends."""
    state = Summarizers()
    app = FastAPI()

    @app.post("/v1/messages")
    async def messages(request: Request) -> Response:
        asked = await _read(request, "anthropic")
        validators.check_anthropic({k: v for k, v in asked.body.items() if k in ("system", "messages", "tools")})
        said = await state._answer(asked)
        return _response(state, said, _anthropic_body(asked, said))

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        asked = await _read(request, "openai")
        validators.check_openai({k: v for k, v in asked.body.items() if k in ("messages", "tools")})
        said = await state._answer(asked)
        return _response(state, said, _openai_body(asked, said))

    async with listening(app) as state.url:
        try:
            yield state
        finally:
            state._closed.set()


async def _reply(said: Reply) -> Reply:
    return said


async def _read(request: Request, provider: Provider) -> ReceivedRequest:
    body = await request.json()
    texts = {message["role"]: message["content"] for message in body["messages"]}
    return ReceivedRequest(
        provider=provider,
        model=body["model"],
        system=body.get("system") or texts.get("system", ""),
        prompt=texts["user"],
        max_tokens=body.get("max_tokens") or body.get("max_completion_tokens") or 0,
        temperature=body.get("temperature"),
        body=body,
        headers=dict(request.headers),
    )


def _response(state: Summarizers, said: Reply, document: Mapping[str, Any]) -> Response:
    content = json.dumps(document) if said.raw is None else said.raw
    if state.compress and isinstance(content, str):
        packed = gzip.compress(content.encode())
        return Response(packed, said.status, {"content-type": "application/json", "content-encoding": "gzip"})
    return Response(content, said.status, {"content-type": "application/json", **said.headers})


def _tokens(text: str) -> int:
    return len(text) // 4 + 1


_KINDS = {429: "rate_limit_error", 529: "overloaded_error", 401: "authentication_error", 400: "invalid_request_error"}


def _anthropic_body(asked: ReceivedRequest, said: Reply) -> Mapping[str, Any]:
    if said.status != 200:
        kind = _KINDS.get(said.status, "api_error")
        return {"type": "error", "error": {"type": kind, "message": said.text}, "request_id": "req_1"}
    stop = {"end": "end_turn", "length": "max_tokens", "refusal": "refusal"}[said.stop]
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": asked.model,
        "content": [{"type": "text", "text": said.text}] if said.text else [],
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {"input_tokens": _tokens(asked.system + asked.prompt), "output_tokens": _tokens(said.text)},
    }


def _openai_body(asked: ReceivedRequest, said: Reply) -> Mapping[str, Any]:
    if said.status != 200:
        code = "context_length_exceeded" if "context length" in said.text else None
        return {"error": {"message": said.text, "type": _KINDS.get(said.status), "param": None, "code": code}}
    refused = said.stop == "refusal"
    message = {"role": "assistant", "content": None, "refusal": said.text} if refused else {}
    read, written = _tokens(asked.system + asked.prompt), _tokens(said.text)
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": asked.model,
        "choices": [
            {
                "index": 0,
                "finish_reason": {"end": "stop", "length": "length", "refusal": "stop"}[said.stop],
                "message": message or {"role": "assistant", "content": said.text},
            }
        ],
        "usage": {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written},
    }
