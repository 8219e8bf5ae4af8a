"""What the client must know of each provider's format: to read answers, whole or streamed. No SDK is imported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from palimpsest.formats import anthropic, gemini, openai_chat, openai_responses
from palimpsest.reply import Answer


class Accumulator(Protocol):
    """Puts a streamed answer together, chunk by chunk."""

    @property
    def begun(self) -> bool:
        """Whether the model has begun to answer; before that, a failure can be made good unseen."""

    @property
    def ended(self) -> bool:
        """Whether the model has said why it stopped."""

    @property
    def text(self) -> str:
        """What the model has said so far."""

    def feed(self, chunk: Any) -> None:
        """Take one chunk as the SDK gives it."""

    def response(self) -> dict[str, Any]:
        """The whole answer, as it would have come without streaming."""


class ProviderFormat(Protocol):
    """One provider's format."""

    def read(self, response: Mapping[str, Any]) -> Answer:
        """Take a whole answer apart."""

    def accumulator(self) -> Accumulator:
        """Something to put a streamed answer together."""

    def user(self, content: Any) -> dict[str, Any]:
        """A message of the user."""

    def arguments(self, request: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
        """The keyword arguments of the SDK's method: a rendered request, and what the caller adds."""

    def tool_names(self, tool: Mapping[str, Any]) -> list[str]:
        """The names in a tool's definition."""


FORMATS: Mapping[str, ProviderFormat] = {
    "openai": openai_chat.CHAT,
    "openai-responses": openai_responses.RESPONSES,
    "anthropic": anthropic.ANTHROPIC,
    "gemini": gemini.GEMINI,
}


def as_dict(value: Any) -> dict[str, Any]:
    """An SDK's object, or the JSON of one, as a dict without what is unset."""
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "model_dump"):
        dumped: dict[str, Any] = value.model_dump(mode="json", exclude_none=True, warnings=False)
        return dumped
    raise TypeError(
        f"the model's answer is a {type(value).__name__}; `send` takes the SDK's method itself, such as "
        "OpenAI().chat.completions.create, or a function that returns what it does"
    )
