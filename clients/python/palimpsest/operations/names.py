"""Types that several operations share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypedDict

from palimpsest.types import EventIn

Format = Literal["openai", "openai-responses", "anthropic", "gemini", "blocks"]
"""The format of requests and messages: OpenAI's chat completions, its Responses API, Anthropic's messages, Gemini's
contents, or neutral blocks."""
Content = str | list[dict[str, Any]]
"""Text, or a list of parts: objects with a `type` such as `text` or `image`."""
Message = Any
"""A message as a provider's SDK accepts or returns it: a mapping, or one of the SDK's own objects."""


class AppendIn(TypedDict, total=False):
    """An append that is part of a step: events, or messages in a format and events that follow them."""

    format: Format
    messages: Sequence[Message]
    events: Sequence[EventIn]
    expected_head: int | None


def plain(value: Any) -> Any:
    """Convert a value for JSON: SDK objects become mappings without unset members, and times become text."""
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "model_dump"):  # pydantic, which all providers' SDKs use
        return value.model_dump(mode="json", exclude_none=True)
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
        return list(value)
    raise TypeError(f"{type(value).__name__} cannot be sent as JSON")
