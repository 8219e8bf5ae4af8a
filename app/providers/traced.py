"""A span around each request to a summarizer's model, by OpenTelemetry's conventions for generative AI."""

from typing import Final
from urllib.parse import urlsplit

from app import tracing
from app.core.compaction.prompt import Completion, Prompt
from app.providers.summarizer import ProviderError, Summarizer

OPERATION: Final = "chat"


class TracedSummarizer:
    """A summarizer whose requests are traced; `provider` is its name in the conventions."""

    def __init__(self, inner: Summarizer, *, provider: str, model: str, base_url: str | None) -> None:
        self._inner = inner
        self._provider = provider
        self._model = model
        self._host = None if base_url is None else urlsplit(base_url).hostname

    async def summarize(self, ask: Prompt, *, timeout: float) -> Completion:  # noqa: ASYNC109 - the wire's own limit, too
        """See Summarizer."""
        model = ask.model or self._model
        with tracing.span(
            f"{OPERATION} {model}",
            "client",
            gen_ai__operation__name=OPERATION,
            gen_ai__provider__name=self._provider,
            gen_ai__request__model=model,
            gen_ai__request__max_tokens=ask.max_tokens,
            gen_ai__request__temperature=ask.temperature,
            server__address=self._host,
        ) as span:
            try:
                answer = await self._inner.summarize(ask, timeout=timeout)
            except ProviderError as error:
                span.fail(error.kind)
                raise
            span.set(
                gen_ai__response__model=answer.model,
                gen_ai__usage__input_tokens=answer.input_tokens,
                gen_ai__usage__output_tokens=answer.output_tokens,
            )
            return answer

    async def aclose(self) -> None:
        """See Summarizer."""
        await self._inner.aclose()
