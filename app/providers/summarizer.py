"""The protocol of a model that writes summaries, its errors, and the part that all clients share."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib.resources import files
from typing import Final, Literal, Protocol, TypeAlias
from urllib.parse import urlsplit

from app.core.compaction.prompt import Completion, Prompt
from app.providers.redaction import redacted
from app.tracing import tracer

Kind: TypeAlias = Literal[
    "rate_limited",
    "overloaded",
    "server",
    "timeout",
    "connection",
    "context_too_long",
    "auth",
    "invalid",
    "spent",
    "open",
]
"""`spent`: a quota or spending limit is used up. `open`: the provider failed too often just now and was not called."""

RETRYABLE: Final = frozenset({"rate_limited", "overloaded", "server", "timeout", "connection"})
DETAIL_CHARS_MAX: Final = 300


class ProviderError(Exception):
    """A model could not be called, or gave no answer.

    `retryable` is whether the same request may succeed later, `retry_after` after how many seconds (None: unknown).
    After `context_too_long`, a shorter request may succeed: one of `room` tokens (None: unknown).
    """

    def __init__(
        self,
        kind: Kind,
        detail: str,
        *,
        retry_after: float | None = None,
        retryable: bool | None = None,
        room: int | None = None,
    ) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind: Kind = kind
        self.detail = detail[:DETAIL_CHARS_MAX]
        self.retry_after = retry_after
        self.room = room
        self.retryable = kind in RETRYABLE if retryable is None else retryable

    def redacted(self, key: str) -> "ProviderError":
        """Return the error without any quote of the key."""
        detail = redacted(self.detail, (key,))
        return ProviderError(self.kind, detail, retry_after=self.retry_after, retryable=self.retryable, room=self.room)


class Summarizer(Protocol):
    """A model that writes summaries."""

    async def summarize(self, ask: Prompt, *, timeout: float) -> Completion:  # noqa: ASYNC109 - the wire's own limit, too
        """Call the model, for at most `timeout` seconds. Raises ProviderError for every failure."""
        ...

    async def aclose(self) -> None:
        """Close the connections."""
        ...


class SummarizerClient(ABC):
    """A summarizer that calls `model` through a vendor's client, and traces its requests by OpenTelemetry's conventions
    for generative AI. `provider` is the vendor's name in these."""

    provider: str

    def __init__(self, model: str, api_key: str, base_url: str | None) -> None:
        self.model = model
        self._key = api_key
        self._host = None if base_url is None else urlsplit(base_url).hostname

    async def summarize(self, ask: Prompt, *, timeout: float) -> Completion:  # noqa: ASYNC109 - the wire's own limit, too
        """See Summarizer."""
        model = ask.model or self.model
        with tracer().span(
            f"chat {model}",
            "client",
            gen_ai__operation__name="chat",
            gen_ai__provider__name=self.provider,
            gen_ai__request__model=model,
            gen_ai__request__max_tokens=ask.max_tokens,
            gen_ai__request__temperature=ask.temperature,
            server__address=self._host,
        ) as span:
            try:
                answer = await self._ask(ask, timeout)
            except ProviderError as error:
                span.fail(error.kind)
                raise error.redacted(self._key) from None
            span.set(
                gen_ai__response__model=answer.model,
                gen_ai__usage__input_tokens=answer.input_tokens,
                gen_ai__usage__output_tokens=answer.output_tokens,
            )
            return answer

    @abstractmethod
    async def _ask(self, ask: Prompt, seconds: float) -> Completion: ...


_SUFFIX: Final = ".md"


def load_prompts() -> Mapping[str, str]:
    """Read all prompts, by name and version, such as `structured.v1`. A version's text never changes."""
    folder = files("app") / "prompts"
    return {
        entry.name.removesuffix(_SUFFIX): entry.read_text(encoding="utf-8")
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name)
        if entry.name.endswith(_SUFFIX)
    }
