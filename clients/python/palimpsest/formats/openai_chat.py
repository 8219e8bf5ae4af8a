"""OpenAI's chat completions, which many other providers offer too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from palimpsest.formats.common import BaseFormat, usage_of
from palimpsest.reply import ParsedAnswer, ToolCall
from palimpsest.types import UsageIn

ONCE = frozenset({"id", "type", "role", "name", "index"})
"""The members of a delta that are complete, even if a provider repeats them in every chunk; other text is appended."""


class Chat(BaseFormat):
    """The format `openai`."""

    def read(self, response: Mapping[str, Any]) -> ParsedAnswer:
        """Parse a complete answer. Of several choices, the first is used."""
        choice = (response.get("choices") or [{}])[0]
        message = {"role": "assistant", **(choice.get("message") or {})}
        calls = [_call(call) for call in message.get("tool_calls") or ()]
        return ParsedAnswer(
            [message], _text(message), calls, _usage(response.get("usage")), choice.get("finish_reason")
        )

    def accumulator(self) -> ChatStream:
        """Return a new accumulator for a streamed answer."""
        return ChatStream()

    def tool_names(self, tool: Mapping[str, Any]) -> list[str]:
        """Return the name in a tool's definition, as a list."""
        return super().tool_names(tool.get("function") or tool.get("custom") or {})


class ChatStream:
    """Accumulator of a chat completion's chunks, also of those in a streaming helper's events."""

    def __init__(self) -> None:
        self._message: dict[str, Any] = {}
        self._rest: dict[str, Any] = {}
        self._stop: str | None = None

    @property
    def begun(self) -> bool:
        """Whether the model has begun to answer."""
        return bool(self._rest)

    @property
    def ended(self) -> bool:
        """Whether the stop reason was received."""
        return self._stop is not None

    @property
    def text(self) -> str:
        """The text received so far."""
        return self._message.get("content") or ""

    def feed(self, chunk: Any) -> None:
        """Add one chunk."""
        if getattr(chunk, "type", None) == "chunk":
            chunk = chunk.chunk
        elif not hasattr(chunk, "choices") and not isinstance(chunk, Mapping):
            return  # an event that a helper derives from chunks
        data = chunk if isinstance(chunk, Mapping) else chunk.model_dump(exclude_none=True, warnings=False)
        self._rest |= {name: value for name, value in data.items() if name != "choices" and value is not None}
        for choice in data.get("choices") or ():
            if choice.get("index", 0) == 0:
                _continue(self._message, choice.get("delta") or {})
                self._stop = choice.get("finish_reason") or self._stop

    def response(self) -> dict[str, Any]:
        """Return the complete answer."""
        message = {"role": "assistant", "content": None, **self._message}
        if "tool_calls" in message:
            calls = message["tool_calls"]
            message["tool_calls"] = [{n: v for n, v in call.items() if n != "index"} for call in calls]
        choice = {"index": 0, "message": message, "finish_reason": self._stop}
        return {**self._rest, "object": "chat.completion", "choices": [choice]}


def _continue(whole: dict[str, Any], delta: Mapping[str, Any]) -> None:
    """Merge a delta into `whole`."""
    for name, value in delta.items():
        if value is None:
            continue
        before = whole.get(name)
        if before is None:
            whole[name] = [] if isinstance(value, list) else {} if isinstance(value, Mapping) else value
            if not isinstance(value, (list, Mapping)):
                continue
            before = whole[name]
        if isinstance(value, Mapping):
            _continue(before, value)
        elif isinstance(value, list):
            for place, item in enumerate(value):
                _continue(_at(before, item.get("index", place)), item)
        elif name in ONCE:
            whole[name] = value or before
        else:
            whole[name] = before + value if isinstance(value, str) else value


def _at(items: list[dict[str, Any]], index: int) -> dict[str, Any]:
    for item in items:
        if item.get("index") == index:
            return item
    items.append({"index": index})
    return items[-1]


def _call(call: Mapping[str, Any]) -> ToolCall:
    if "custom" in call:
        return ToolCall(call["id"], call["custom"]["name"], call["custom"].get("input") or "", free_text=True)
    function = call.get("function") or {}
    return ToolCall(call["id"], function.get("name", ""), function.get("arguments") or "")


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content") or message.get("refusal") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def _usage(usage: Mapping[str, Any] | None) -> UsageIn | None:
    if not usage:
        return None
    details = usage.get("prompt_tokens_details") or {}
    return usage_of(
        input_tokens=usage.get("prompt_tokens"),
        cache_read_tokens=details.get("cached_tokens"),
        cache_write_tokens=details.get("cache_write_tokens"),
        output_tokens=usage.get("completion_tokens"),
    )


CHAT = Chat()
