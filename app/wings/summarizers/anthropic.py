"""Summaries by Anthropic's models, or by any server with the Messages API."""

from collections.abc import Mapping
from typing import Any, Final

import anthropic
from anthropic.types import Message

from app.core.compaction.prompt import Completion, Prompt, unwrapped
from app.providers import ProviderError
from app.wings.summarizers.client import BOUNDED, SummarizerClient

_CUT_OFF: Final = ("max_tokens", "model_context_window_exceeded")


class Anthropic(SummarizerClient):
    """A summarizer that calls `model`. `base_url` is the service's, without `/v1`; None is Anthropic's own."""

    provider = "anthropic"
    sdk = anthropic
    sdk_error = anthropic.AnthropicError

    def __init__(self, *, model: str, api_key: str, base_url: str | None = None) -> None:
        # The worker retries: it knows the budget, and can run other jobs first.
        http = anthropic.DefaultAsyncHttpxClient(event_hooks=BOUNDED)
        client = anthropic.AsyncAnthropic(api_key=api_key, base_url=base_url, max_retries=0, http_client=http)
        super().__init__(model, api_key, base_url, client)

    async def _send(self, ask: Prompt, model: str, extra: Mapping[str, Any], seconds: float) -> Any:
        return await self._client.messages.create(
            model=model,
            max_tokens=ask.max_tokens,
            system=ask.system,
            messages=[{"role": "user", "content": ask.prompt}],
            # The client has no argument for a parameter that newer models no longer accept.
            extra_body=extra,
            timeout=seconds,
        )

    def _message(self, error: anthropic.APIStatusError) -> str:
        return f"{error.type or ''} {error.api_message or error.message}".strip()

    def _completion(self, reply: Any) -> Completion:
        if not isinstance(reply, Message) or not isinstance(reply.content, list):
            raise ProviderError("server", f"an answer that is no completion: {str(reply)[:200]}")
        usage = reply.usage
        counts = (usage.input_tokens, usage.cache_creation_input_tokens, usage.cache_read_input_tokens) if usage else ()
        named = [count for count in counts if count is not None]
        return Completion(
            text=unwrapped("".join(block.text for block in reply.content if block.type == "text")),
            model=reply.model,
            cut_off=reply.stop_reason in _CUT_OFF,
            declined=reply.stop_reason == "refusal",
            input_tokens=sum(named) if named else None,
            output_tokens=usage.output_tokens if usage else None,
        )
