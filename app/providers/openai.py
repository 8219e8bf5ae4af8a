"""Summaries by OpenAI's models, or by any server with chat completions."""

import asyncio
from typing import Any, Final

import openai
from openai.types.chat import ChatCompletion

from app.core.compaction.prompt import Completion, Prompt, plain
from app.providers.answers import BOUNDED
from app.providers.failures import failure, rejected_parameter
from app.providers.summarizer import ProviderError, SummarizerClient
from app.tracing import tracer

_LIMITS: Final = ("max_completion_tokens", "max_tokens")
"""OpenAI's newer models accept only the first, many other servers only the second."""


class OpenAI(SummarizerClient):
    """A summarizer that calls `model`. `base_url` is the API's, usually with `/v1`; None is OpenAI's own. `api_key`
    must not be empty, even for a server that needs none."""

    provider = "openai"

    def __init__(self, *, model: str, api_key: str, base_url: str | None = None) -> None:
        super().__init__(model, api_key, base_url)
        # The worker retries: it knows the budget, and can run other jobs first.
        http = openai.DefaultAsyncHttpxClient(event_hooks=BOUNDED)
        self._client = openai.AsyncOpenAI(api_key=api_key, base_url=base_url, max_retries=0, http_client=http)
        self._limits = _LIMITS if base_url is None else _LIMITS[::-1]
        self._rejected: set[tuple[str, str]] = set()
        """Pairs of a model and a parameter that it does not accept."""

    async def _ask(self, ask: Prompt, seconds: float) -> Completion:
        try:
            async with asyncio.timeout(seconds):
                return _answer(await self._create(ask, seconds))
        except (TimeoutError, openai.APITimeoutError):
            raise ProviderError("timeout", f"no answer within {seconds:g} seconds") from None
        except openai.APIConnectionError as error:
            raise ProviderError("connection", str(error.__cause__ or error)) from error
        except openai.APIStatusError as error:
            raise failure(error.status_code, _message(error), error.response.headers) from error
        except (openai.OpenAIError, AttributeError, TypeError, ValueError) as error:
            raise ProviderError("server", f"an answer that is no completion: {error}") from error

    async def aclose(self) -> None:
        """See Summarizer."""
        await self._client.close()

    async def _create(self, ask: Prompt, seconds: float) -> ChatCompletion:
        model = ask.model or self.model
        while True:
            extra: dict[str, Any] = {}
            if (model, "temperature") not in self._rejected:
                extra["temperature"] = ask.temperature
            if limit := next((name for name in self._limits if (model, name) not in self._rejected), None):
                extra[limit] = ask.max_tokens
            try:
                return await self._client.chat.completions.create(
                    model=model,
                    messages=[{"role": "system", "content": ask.system}, {"role": "user", "content": ask.prompt}],
                    extra_body=extra,
                    extra_headers=tracer().headers(),
                    timeout=seconds,
                )
            except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
                name = rejected_parameter(_message(error), extra)
                if name is None:
                    raise
                self._rejected.add((model, name))


def _message(error: openai.APIStatusError) -> str:
    return f"{error.code or ''} {error.message}".strip()


def _answer(reply: Any) -> Completion:
    if not isinstance(reply, ChatCompletion):
        raise ProviderError("server", f"an answer that is no completion: {str(reply)[:200]}")
    if isinstance(reported := getattr(reply, "error", None), dict):  # routers report upstream errors with status 200
        code = reported.get("code")
        raise failure(code if isinstance(code, int) else 500, str(reported.get("message", reported)), {})
    if not reply.choices:
        raise ProviderError("server", "an answer without a choice")
    choice, usage = reply.choices[0], reply.usage
    refusal = choice.message.refusal
    return Completion(
        text=plain(choice.message.content or refusal or ""),
        model=reply.model,
        cut_off=choice.finish_reason == "length",
        refused=bool(refusal) or choice.finish_reason == "content_filter",
        input_tokens=usage.prompt_tokens if usage else None,
        output_tokens=usage.completion_tokens if usage else None,
    )
