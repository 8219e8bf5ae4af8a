"""Summaries by Anthropic's models, or by any server with the Messages API."""

import asyncio
from typing import Any, Final

import anthropic
from anthropic.types import Message

from app.core.compaction.prompt import Completion, Prompt, plain
from app.providers.answers import BOUNDED
from app.providers.failures import failure, rejected_parameter
from app.providers.summarizer import ProviderError, SummarizerClient

_CUT_OFF: Final = ("max_tokens", "model_context_window_exceeded")


class Anthropic(SummarizerClient):
    """A summarizer that calls `model`. `base_url` is the service's, without `/v1`; None is Anthropic's own."""

    provider = "anthropic"

    def __init__(self, *, model: str, api_key: str, base_url: str | None = None) -> None:
        super().__init__(model, api_key, base_url)
        # The worker retries: it knows the budget, and can run other jobs first.
        http = anthropic.DefaultAsyncHttpxClient(event_hooks=BOUNDED)
        self._client = anthropic.AsyncAnthropic(api_key=api_key, base_url=base_url, max_retries=0, http_client=http)
        self._rejected: set[tuple[str, str]] = set()
        """Pairs of a model and a parameter that it does not accept."""

    async def _ask(self, ask: Prompt, seconds: float) -> Completion:
        try:
            async with asyncio.timeout(seconds):
                return _answer(await self._create(ask, seconds))
        except (TimeoutError, anthropic.APITimeoutError):
            raise ProviderError("timeout", f"no answer within {seconds:g} seconds") from None
        except anthropic.APIConnectionError as error:
            raise ProviderError("connection", str(error.__cause__ or error)) from error
        except anthropic.APIStatusError as error:
            raise failure(error.status_code, _message(error), error.response.headers) from error
        except (anthropic.AnthropicError, AttributeError, TypeError, ValueError) as error:
            raise ProviderError("server", f"an answer that is no message: {error}") from error

    async def aclose(self) -> None:
        """See Summarizer."""
        await self._client.close()

    async def _create(self, ask: Prompt, seconds: float) -> Message:
        model = ask.model or self.model
        while True:
            # In `extra_body`, since the client has no argument for a parameter that newer models no longer accept.
            extra = {"temperature": ask.temperature} if (model, "temperature") not in self._rejected else {}
            try:
                return await self._client.messages.create(
                    model=model,
                    max_tokens=ask.max_tokens,
                    system=ask.system,
                    messages=[{"role": "user", "content": ask.prompt}],
                    extra_body=extra,
                    timeout=seconds,
                )
            except anthropic.BadRequestError as error:
                name = rejected_parameter(_message(error), extra)
                if name is None:
                    raise
                self._rejected.add((model, name))


def _message(error: anthropic.APIStatusError) -> str:
    return f"{error.type or ''} {error.api_message or error.message}".strip()


def _answer(reply: Any) -> Completion:
    if not isinstance(reply, Message) or not isinstance(reply.content, list):
        raise ProviderError("server", f"an answer that is no message: {str(reply)[:200]}")
    usage = reply.usage
    counts = (usage.input_tokens, usage.cache_creation_input_tokens, usage.cache_read_input_tokens) if usage else ()
    named = [count for count in counts if count is not None]
    return Completion(
        text=plain("".join(block.text for block in reply.content if block.type == "text")),
        model=reply.model,
        cut_off=reply.stop_reason in _CUT_OFF,
        refused=reply.stop_reason == "refusal",
        input_tokens=sum(named) if named else None,
        output_tokens=usage.output_tokens if usage else None,
    )
