"""Both providers on loopback: they speak the wire protocol, check what they are sent, and always say hello."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request

from tests.support import validators
from tests.support.loopback import listening


@dataclass
class StandIn:
    """Where it listens, and what it was asked."""

    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)


@asynccontextmanager
async def providers() -> AsyncIterator[StandIn]:
    """Serve as long as the block lasts."""
    stand_in = StandIn()
    app = FastAPI()

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> dict[str, Any]:
        body = await request.json()
        validators.check_openai({k: v for k, v in body.items() if k in ("messages", "tools")})
        stand_in.requests.append(body)
        message = {"role": "assistant", "content": "Hello."}
        return {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": body["model"],
            "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
            "usage": {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12},
        }

    @app.post("/v1/messages")
    async def messages(request: Request) -> dict[str, Any]:
        body = await request.json()
        validators.check_anthropic({k: v for k, v in body.items() if k in ("system", "messages", "tools")})
        stand_in.requests.append(body)
        return {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": [{"type": "text", "text": "Hello."}],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 10, "output_tokens": 2},
        }

    async with listening(app) as stand_in.url:
        yield stand_in
