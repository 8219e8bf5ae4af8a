"""The protocol of a model that writes summaries, and its errors."""

from typing import Final, Literal, Protocol, TypeAlias

from app.core.compaction.prompt import Completion, Prompt
from app.providers.redaction import redacted

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
