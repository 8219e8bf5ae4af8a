"""Fake OpenAI and Anthropic models on loopback that refuse requests over their window and follow a small script.

"Look up order N." makes a model call the tool `lookup` and then say that it is done. "What is the gate word of order
N?" is answered from the messages, after one recall if they do not contain the word. Only user messages are tasks: a
tool result may quote an earlier one.
"""

import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from tests.support import validators
from tests.support.loopback import listening

BYTES_PER_TOKEN = 3.5
_TASK = re.compile(r"Look up order (\d+)\.|What is the gate word of order (\d+)\?")


@dataclass(frozen=True)
class Thought:
    """A model's next step: a tool call or a text."""

    tool: str | None
    arguments: Mapping[str, Any]
    text: str


@dataclass(frozen=True)
class MessageText:
    """A text of a message, and whether a user wrote it."""

    text: str
    by_user: bool


@dataclass
class Models:
    """The fake models' URL, the token size of every request, and every step they took."""

    window_tokens: int
    url: str = ""
    sizes: list[int] = field(default_factory=list)
    thoughts: list[Thought] = field(default_factory=list)
    refused: int = 0

    def think(self, said: list[MessageText]) -> Thought:
        """Return the next step for the texts of all messages, in order."""
        texts = [one.text for one in said]
        requests = ((at, _TASK.search(one.text)) for at, one in enumerate(said) if one.by_user)
        at, task = [(at, found) for at, found in requests if found][-1]
        results = texts[at + 1 :]
        thought = _answer_or_recall(task, texts, results) if task[2] else _after_lookup(task, results)
        self.thoughts.append(thought)
        return thought


def _after_lookup(task: re.Match[str], results: list[str]) -> Thought:
    if not results:
        return Thought("lookup", {"order": int(task[1])}, "")
    return Thought(None, {}, f"Order {task[1]} is looked up.")


def _answer_or_recall(task: re.Match[str], texts: list[str], results: list[str]) -> Thought:
    seen = re.search(rf"gate word of order {task[2]} is (\w+ \w+)", " ".join(texts))
    if seen:
        return Thought(None, {}, seen[1])
    if results:
        return Thought(None, {}, "I do not know.")
    return Thought("recall", {"query": task[0]}, "")


@asynccontextmanager
async def models(window_tokens: int) -> AsyncIterator[Models]:
    """Serve the models until the block ends."""
    state = Models(window_tokens)
    app = FastAPI()

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> JSONResponse:
        body = await request.json()
        validators.check_openai({key: body[key] for key in ("messages", "tools") if key in body})
        size = _size(state, body)
        if size > window_tokens:
            words = (
                f"maximum context length is {window_tokens} tokens. However, your messages resulted in {size} tokens."
            )
            error = {"message": f"This model's {words}", "type": "invalid_request_error"}
            return JSONResponse({"error": error | {"code": "context_length_exceeded", "param": "messages"}}, 400)
        return JSONResponse(_openai(state.think([_openai_said(m) for m in body["messages"]]), len(state.sizes), size))

    @app.post("/v1/messages")
    async def messages(request: Request) -> JSONResponse:
        body = await request.json()
        validators.check_anthropic({key: body[key] for key in ("system", "messages", "tools") if key in body})
        size = _size(state, body)
        if size > window_tokens:
            words = f"prompt is too long: {size} tokens > {window_tokens} maximum"
            return JSONResponse({"type": "error", "error": {"type": "invalid_request_error", "message": words}}, 400)
        said = [one for message in body["messages"] for one in _anthropic_said(message)]
        return JSONResponse(_anthropic(state.think(said), len(state.sizes), size))

    async with listening(app) as state.url:
        yield state


def _size(state: Models, body: Mapping[str, Any]) -> int:
    size = int(len(json.dumps(body)) / BYTES_PER_TOKEN)
    state.sizes.append(size)
    state.refused += size > state.window_tokens
    return size


def _openai_said(message: Mapping[str, Any]) -> MessageText:
    content = message.get("content") or ""
    text = content if isinstance(content, str) else " ".join(part.get("text", "") for part in content)
    return MessageText(text, message["role"] == "user")


def _anthropic_said(message: Mapping[str, Any]) -> list[MessageText]:
    content, by_user = message["content"], message["role"] == "user"
    if isinstance(content, str):
        return [MessageText(content, by_user)]
    found = []
    for part in content:
        inner = part.get("text") or part.get("content") or ""
        text = inner if isinstance(inner, str) else " ".join(p.get("text", "") for p in inner)
        found.append(MessageText(text, by_user and part["type"] == "text"))
    return [one for one in found if one.text]


def _openai(thought: Thought, number: int, size: int) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": thought.text or None}
    if thought.tool:
        function = {"name": thought.tool, "arguments": json.dumps(thought.arguments)}
        message["tool_calls"] = [{"id": f"call_{number}", "type": "function", "function": function}]
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "stand-in",
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if thought.tool else "stop"}],
        "usage": {"prompt_tokens": size, "completion_tokens": 10, "total_tokens": size + 10},
    }


def _anthropic(thought: Thought, number: int, size: int) -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"type": "text", "text": thought.text}]
    if thought.tool:
        content = [{"type": "tool_use", "id": f"toolu_{number}", "name": thought.tool, "input": thought.arguments}]
    return {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": "stand-in",
        "content": content,
        "stop_reason": "tool_use" if thought.tool else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": size, "output_tokens": 10},
    }
