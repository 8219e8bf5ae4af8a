"""A fake model provider that counts tokens in its own way and refuses requests over its window.

It scales the estimator's count of the body by `factor` and adds `overhead`.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from app.core.log.appends import parse_batch
from app.core.render.formats import FORMATS
from app.core.tokens.counter import HEURISTIC, REQUEST_TOKENS, Counter
from app.core.tokens.scales import AREA
from tests.support.loopback import listening

COUNTER = Counter(HEURISTIC, AREA)

WITH_NUMBERS = (
    "This model's maximum context length is {window} tokens. However, your messages resulted in {tokens} tokens."
)
WITHOUT_NUMBERS = "Your input exceeds the context window of this model. Please adjust your input and try again."


@dataclass
class Provider:
    """The provider's settings; `asked` holds the token count of each request."""

    factor: float = 1.0
    window: int = 10**9
    message: str = WITH_NUMBERS
    overhead: int = 0
    url: str = ""
    asked: list[int] = field(default_factory=list)

    def count(self, body: dict[str, Any]) -> int:
        """Return the provider's token count of a request; only the `messages` of a chat or messages request count."""
        form = "anthropic" if "system" in body else "openai"
        drafts = parse_batch(FORMATS[form].read(body["messages"]), native=True)
        ours = sum(COUNTER.event(replace(draft, native=None)) for draft in drafts) + REQUEST_TOKENS
        return round(ours * self.factor) + self.overhead


@asynccontextmanager
async def counting(provider: Provider) -> AsyncIterator[Provider]:
    """Serve the provider until the block ends."""
    app = FastAPI()

    @app.post("/v1/chat/completions")
    async def complete(request: Request) -> JSONResponse:
        tokens = provider.count(await request.json())
        provider.asked.append(tokens)
        if tokens > provider.window:
            message = provider.message.format(window=provider.window, tokens=tokens)
            return JSONResponse({"error": {"message": message, "type": "invalid_request_error"}}, 400)
        usage = {"prompt_tokens": tokens, "completion_tokens": 3, "total_tokens": tokens + 3}
        return JSONResponse({"choices": [{"message": {"role": "assistant", "content": "Yes."}}], "usage": usage})

    async with listening(app) as provider.url:
        yield provider
