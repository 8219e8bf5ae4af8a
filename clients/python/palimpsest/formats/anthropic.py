"""Anthropic's messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from palimpsest.formats.common import BaseFormat, usage_of
from palimpsest.reply import ParsedAnswer, ToolCall
from palimpsest.types import UsageIn

CONTINUED = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
    "compaction_delta": "content",
}
"""The member of a block to which a delta of each type is appended."""


class Messages(BaseFormat):
    """The format `anthropic`."""

    def read(self, response: Mapping[str, Any]) -> ParsedAnswer:
        """Parse a complete answer. An answer without content gives no message to log."""
        content = [dict(block) for block in response.get("content") or ()]
        calls = [
            ToolCall(block["id"], block["name"], _arguments(block.get("input")))
            for block in content
            if block.get("type") == "tool_use"
        ]
        text = "".join(block.get("text", "") for block in content if block.get("type") == "text")
        messages = [{"role": "assistant", "content": content}] if content else []
        return ParsedAnswer(messages, text, calls, _usage(response.get("usage")), response.get("stop_reason"))

    def accumulator(self) -> MessageStream:
        """Return a new accumulator for a streamed answer."""
        return MessageStream()


class MessageStream:
    """Accumulator of a message's events. Events that a streaming helper adds are ignored."""

    def __init__(self) -> None:
        self._message: dict[str, Any] = {}
        self._blocks: dict[int, dict[str, Any]] = {}
        self._inputs: dict[int, str] = {}

    @property
    def begun(self) -> bool:
        """Whether the model has begun to answer."""
        return bool(self._message)

    @property
    def ended(self) -> bool:
        """Whether the stop reason was received."""
        return self._message.get("stop_reason") is not None

    @property
    def text(self) -> str:
        """The text received so far."""
        return "".join(block.get("text", "") for block in self._blocks.values() if block.get("type") == "text")

    def feed(self, chunk: Any) -> None:
        """Add one event."""
        event = chunk if isinstance(chunk, Mapping) else chunk.model_dump(exclude_none=True, warnings=False)
        kind = event.get("type")
        if kind == "message_start":
            self._message = dict(event["message"])
        elif kind == "content_block_start":
            self._blocks[event["index"]] = dict(event["content_block"])
        elif kind == "content_block_delta":
            self._continue(event["index"], event["delta"])
        elif kind == "content_block_stop" and self._inputs.get(event["index"]):
            self._blocks[event["index"]]["input"] = _input(self._inputs[event["index"]])
        elif kind == "message_delta":
            self._message |= event["delta"]
            usage = {name: value for name, value in (event.get("usage") or {}).items() if value is not None}
            self._message["usage"] = {**self._message.get("usage", {}), **usage}

    def _continue(self, index: int, delta: Mapping[str, Any]) -> None:
        block, kind = self._blocks[index], delta["type"]
        if kind == "input_json_delta":
            self._inputs[index] = self._inputs.get(index, "") + delta["partial_json"]
        elif kind == "citations_delta":
            block["citations"] = [*(block.get("citations") or ()), delta["citation"]]
        elif kind in CONTINUED:
            name = CONTINUED[kind]
            block[name] = (block.get(name) or "") + (delta.get(name) or "")

    def response(self) -> dict[str, Any]:
        """Return the complete answer."""
        return {**self._message, "content": [self._blocks[index] for index in sorted(self._blocks)]}


def _input(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:  # cut off by the limit of output tokens; the log accepts any text
        return text


def _arguments(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value or {})


def _usage(usage: Mapping[str, Any] | None) -> UsageIn | None:
    if not usage:
        return None
    return usage_of(
        input_tokens=usage.get("input_tokens"),
        cache_read_tokens=usage.get("cache_read_input_tokens"),
        cache_write_tokens=usage.get("cache_creation_input_tokens"),
        output_tokens=usage.get("output_tokens"),
    )


ANTHROPIC = Messages()
