"""Providers' formats, for reading complete and streamed answers. No SDK is imported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from palimpsest.formats import anthropic, gemini, openai_chat, openai_responses
from palimpsest.reply import ParsedAnswer


class Accumulator(Protocol):
    """Assembles a streamed answer from its chunks."""

    @property
    def begun(self) -> bool:
        """Whether the model has begun to answer; before that, a call can be retried unnoticed."""

    @property
    def ended(self) -> bool:
        """Whether the stop reason was received."""

    @property
    def text(self) -> str:
        """The text received so far."""

    def feed(self, chunk: Any) -> None:
        """Add one chunk as the SDK returns it."""

    def response(self) -> dict[str, Any]:
        """Return the complete answer as it would be without streaming."""


class ProviderFormat(Protocol):
    """One provider's format."""

    def read(self, response: Mapping[str, Any]) -> ParsedAnswer:
        """Parse a complete answer."""

    def accumulator(self) -> Accumulator:
        """Return a new accumulator for a streamed answer."""

    def user(self, content: Any) -> dict[str, Any]:
        """Return a message of the user."""

    def arguments(self, request: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keyword arguments of the SDK's method: a rendered request, and the caller's own arguments."""

    def tool_names(self, tool: Mapping[str, Any]) -> list[str]:
        """Return the names in a tool's definition."""


FORMATS: Mapping[str, ProviderFormat] = {
    "openai": openai_chat.CHAT,
    "openai-responses": openai_responses.RESPONSES,
    "anthropic": anthropic.ANTHROPIC,
    "gemini": gemini.GEMINI,
}


def as_dict(value: Any) -> dict[str, Any]:
    """Convert an SDK's object, or its JSON, to a dict without unset values."""
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "model_dump"):
        dumped: dict[str, Any] = value.model_dump(mode="json", exclude_none=True, warnings=False)
        return dumped
    raise TypeError(
        f"the model's answer is a {type(value).__name__}; pass `send` the SDK's method itself, such as "
        "OpenAI().chat.completions.create, or a function that returns the same"
    )
