"""Summaries by OpenAI's models, or by any server with chat completions."""

from collections.abc import Mapping
from typing import Any, Final

import openai
from openai.types.chat import ChatCompletion

from app.core.compaction.prompt import Completion, Prompt, unwrapped
from app.providers import ProviderError
from app.tracing import tracer
from app.wings.summarizers.client import BOUNDED, SummarizerClient, failure

_LIMITS: Final = ("max_completion_tokens", "max_tokens")
"""OpenAI's newer models accept only the first, many other servers only the second."""


class OpenAI(SummarizerClient):
    """A summarizer that calls `model`. `base_url` is the API's, usually with `/v1`; None is OpenAI's own. `api_key`
    must not be empty, even for a server that needs none."""

    provider = "openai"
    sdk = openai
    sdk_error = openai.OpenAIError

    def __init__(self, *, model: str, api_key: str, base_url: str | None = None) -> None:
        # The worker retries: it knows the budget, and can run other jobs first.
        http = openai.DefaultAsyncHttpxClient(event_hooks=BOUNDED)
        client = openai.AsyncOpenAI(api_key=api_key, base_url=base_url, max_retries=0, http_client=http)
        super().__init__(model, api_key, base_url, client)
        self._limits = _LIMITS if base_url is None else _LIMITS[::-1]

    def _optional(self, ask: Prompt, model: str) -> dict[str, Any]:
        limits = [name for name in self._limits if (model, name) not in self._rejected]
        return super()._optional(ask, model) | dict.fromkeys(limits[:1], ask.max_tokens)

    async def _send(self, ask: Prompt, model: str, extra: Mapping[str, Any], seconds: float) -> Any:
        return await self._client.chat.completions.create(
            model=model,
            messages=[{"role": "system", "content": ask.system}, {"role": "user", "content": ask.prompt}],
            extra_body=extra,
            extra_headers=tracer.get().headers(),
            timeout=seconds,
        )

    def _message(self, error: openai.APIStatusError) -> str:
        return f"{error.code or ''} {error.message}".strip()

    def _completion(self, reply: Any) -> Completion:
        if not isinstance(reply, ChatCompletion):
            raise ProviderError("server", f"an answer that is no completion: {str(reply)[:200]}")
        # Routers report upstream errors with status 200.
        if isinstance(reported := getattr(reply, "error", None), dict):
            code = reported.get("code")
            raise failure(code if isinstance(code, int) else 500, str(reported.get("message", reported)), {})
        if not reply.choices:
            raise ProviderError("server", "an answer without a choice")
        choice, usage = reply.choices[0], reply.usage
        refusal = choice.message.refusal
        return Completion(
            text=unwrapped(choice.message.content or refusal or ""),
            model=reply.model,
            cut_off=choice.finish_reason == "length",
            declined=bool(refusal) or choice.finish_reason == "content_filter",
            input_tokens=usage.prompt_tokens if usage else None,
            output_tokens=usage.completion_tokens if usage else None,
        )
