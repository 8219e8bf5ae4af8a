"""A scripted provider of Anthropic's API, and a rival proxy, for runs without a key.

The provider has a window, a cache of prompts and the clearing of tool results, so that arms differ as they would.
"""

import hashlib
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final

import httpx2
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from bench.tasks.local import TASKS, next_command
from bench.tasks.meter import listening

Json = dict[str, Any]
WINDOW_TOKENS: Final = 24_000
CHARS_PER_TOKEN: Final = 4
CLEARED: Final = "[cleared]"
RIVAL_KEEPS: Final = 3
RIVAL_CHARS: Final = 200
"""The rival cuts all results but the newest RIVAL_KEEPS to this length."""


def provider() -> AbstractAsyncContextManager[str]:
    """Serve a provider with an empty cache."""
    cache: set[str] = set()

    async def messages(request: Request) -> Response:
        return _reply(await request.json(), cache)

    return listening(Starlette(routes=[Route("/v1/messages", messages, methods=["POST"])]))


@asynccontextmanager
async def rival(upstream: str) -> AsyncIterator[str]:
    """Serve a proxy that cuts old tool results."""
    async with httpx2.AsyncClient(base_url=upstream, timeout=60) as http:

        async def messages(request: Request) -> Response:
            body = await request.json()
            for block in _results(body["messages"])[:-RIVAL_KEEPS]:
                block["content"] = _text(block["content"])[:RIVAL_CHARS]
            headers = {
                key: value for key, value in request.headers.items() if key in ("x-api-key", "anthropic-version")
            }
            answer = await http.post("/v1/messages", json=body, headers=headers)
            return Response(answer.content, answer.status_code, {"content-type": "application/json"})

        async with listening(Starlette(routes=[Route("/v1/messages", messages, methods=["POST"])])) as url:
            yield url


def _reply(body: Json, cache: set[str]) -> Response:
    whole = json.dumps(body["messages"])
    task = next((one for one in TASKS if f"[{one.name}]" in whole), None)
    if task is None:
        return _error(400, "invalid_request_error", "the messages are of no known task")
    if task.refused:
        return _error(401, "authentication_error", "invalid x-api-key")
    _clear(body)
    usage = _bill(body, cache)
    size = sum(usage.values())
    if size > WINDOW_TOKENS:
        return _error(400, "invalid_request_error", f"prompt is too long: {size} tokens > {WINDOW_TOKENS} maximum")
    results = [_text(block["content"]) for block in _results(body["messages"])]
    command = next_command(task, results)
    number = len(results)
    content = [
        {"type": "text", "text": "The next command is this one."},
        {"type": "tool_use", "id": f"toolu_{number}", "name": "bash", "input": {"command": command}},
    ]
    usage["output_tokens"] = len(json.dumps(content)) // CHARS_PER_TOKEN
    answer = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": body["model"], "content": content}
    return JSONResponse({**answer, "stop_reason": "tool_use", "stop_sequence": None, "usage": usage})


def _error(status: int, kind: str, message: str) -> Response:
    return JSONResponse({"type": "error", "error": {"type": kind, "message": message}}, status)


def _clear(body: Json) -> None:
    """Clear old tool results as `clear_tool_uses_20250919` asks."""
    for edit in (body.get("context_management") or {}).get("edits", []):
        if len(json.dumps(body["messages"])) // CHARS_PER_TOKEN > edit["trigger"]["value"]:
            for block in _results(body["messages"])[: -edit["keep"]["value"]]:
                block["content"] = CLEARED


def _bill(body: Json, cache: set[str]) -> dict[str, int]:
    """Return the input's usage: up to the last marker it is read from the cache or written to it."""
    read = marked = size = 0
    begun = hashlib.sha256()
    pending: list[str] = []
    for block in _blocks(body):
        marker = block.pop("cache_control", None)
        text = json.dumps(block)
        begun.update(text.encode())
        size += len(text)
        key = begun.hexdigest()
        read = size if key in cache else read
        pending.append(key)
        if marker:
            marked = size
            cache |= set(pending)
            pending.clear()
    read = min(read, marked)
    counts = {
        "input_tokens": size - marked,
        "cache_read_input_tokens": read,
        "cache_creation_input_tokens": marked - read,
    }
    return {name: count // CHARS_PER_TOKEN for name, count in counts.items()}


def _blocks(body: Json) -> Iterator[Json]:
    """Yield the request's blocks in the order of the provider's cache."""
    yield from (dict(tool) for tool in body.get("tools", []))
    for content in (body.get("system") or [], *(message["content"] for message in body["messages"])):
        yield from ({"text": content},) if isinstance(content, str) else (dict(block) for block in content)


def _results(messages: Sequence[Json]) -> list[Json]:
    contents = (message["content"] for message in messages if isinstance(message["content"], list))
    return [block for content in contents for block in content if block["type"] == "tool_result"]


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(block.get("text", "") for block in content or [])
