"""OpenAI's Responses API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from palimpsest.formats.common import BaseFormat, usage_of
from palimpsest.reply import ParsedAnswer, ToolCall
from palimpsest.types import UsageIn

PROLOGUE = frozenset({"response.created", "response.queued", "response.in_progress"})
ENDS = frozenset({"response.completed", "response.incomplete", "response.failed"})


class Responses(BaseFormat):
    """The format `openai-responses`."""

    def read(self, response: Mapping[str, Any]) -> ParsedAnswer:
        """Parse a complete answer."""
        output = [dict(item) for item in response.get("output") or ()]
        calls = [call for item in output if (call := _call(item)) is not None]
        text = "".join(
            part.get("text") or part.get("refusal") or ""
            for item in output
            if item.get("type") == "message"
            for part in item.get("content") or ()
        )
        failure = response.get("error") if response.get("status") == "failed" else None
        stop = (response.get("incomplete_details") or {}).get("reason") or response.get("status")
        return ParsedAnswer(output, text, calls, _usage(response.get("usage")), stop, failure)

    def accumulator(self) -> ResponsesStream:
        """Return a new accumulator for a streamed answer."""
        return ResponsesStream()


class ResponsesStream:
    """Accumulator of a response's events. The last one has the complete response."""

    def __init__(self) -> None:
        self._response: dict[str, Any] = {}
        self._text: list[str] = []
        self._begun = False

    @property
    def begun(self) -> bool:
        """Whether the model has begun to answer."""
        return self._begun

    @property
    def ended(self) -> bool:
        """Whether the stop reason was received."""
        return bool(self._response)

    @property
    def text(self) -> str:
        """The text received so far."""
        return "".join(self._text)

    def feed(self, chunk: Any) -> None:
        """Add one event."""
        event = chunk if isinstance(chunk, Mapping) else chunk.model_dump(exclude_none=True, warnings=False)
        kind = event.get("type", "")
        if kind in ENDS:
            self._response = event["response"]
        elif kind == "error":
            self._response = {"status": "failed", "error": {n: event.get(n) for n in ("code", "message")}}
        elif kind == "response.output_text.delta":
            self._text.append(event["delta"])
        failed = self._response.get("status") == "failed"
        self._begun = self._begun or not (kind in PROLOGUE or failed)

    def response(self) -> dict[str, Any]:
        """Return the complete answer; for a stream without an end, the text received."""
        if self._response or not self._text:
            return self._response
        part = {"type": "output_text", "text": self.text, "annotations": []}
        message = {"type": "message", "role": "assistant", "status": "incomplete", "content": [part]}
        return {"status": "incomplete", "output": [message]}


def _call(item: Mapping[str, Any]) -> ToolCall | None:
    if item.get("type") == "function_call":
        return ToolCall(item["call_id"], item["name"], item.get("arguments") or "")
    if item.get("type") == "custom_tool_call":
        return ToolCall(item["call_id"], item["name"], item.get("input") or "", free_text=True)
    return None


def _usage(usage: Mapping[str, Any] | None) -> UsageIn | None:
    if not usage:
        return None
    details = usage.get("input_tokens_details") or {}
    return usage_of(
        input_tokens=usage.get("input_tokens"),
        cache_read_tokens=details.get("cached_tokens"),
        cache_write_tokens=details.get("cache_write_tokens"),
        output_tokens=usage.get("output_tokens"),
    )


RESPONSES = Responses()
