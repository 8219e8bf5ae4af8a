"""Gemini's contents, in the notation of its API or of its Python SDK, google-genai."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from palimpsest.formats.common import BaseFormat, merge, usage_of
from palimpsest.reply import ParsedAnswer, ToolCall
from palimpsest.types import UsageIn

IN_CONFIG = {"systemInstruction": "system_instruction", "tools": "tools"}
"""The members of a request that the SDK's methods accept in `config`, with their names there."""


class Gemini(BaseFormat):
    """The format `gemini`, for the SDK's `generate_content` and `generate_content_stream`."""

    def user(self, content: Any) -> dict[str, Any]:
        """Return a content of the user: one text, or the given parts."""
        return {"role": "user", "parts": [{"text": content}] if isinstance(content, str) else content}

    def arguments(self, request: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keyword arguments: `contents`, the caller's own, and everything else in `config`."""
        given: Any = extra.get("config") or {}
        if not isinstance(given, Mapping):  # the SDK's own object
            given = {name: getattr(given, name) for name in given.model_fields_set}
        of_session = {IN_CONFIG[name]: value for name, value in request.items() if name in IN_CONFIG}
        config = merge(of_session, {IN_CONFIG.get(name, name): value for name, value in given.items()})
        others = {name: value for name, value in request.items() if name not in IN_CONFIG}
        return merge(others, {**extra, **({"config": config} if config else {})})

    def tool_names(self, tool: Mapping[str, Any]) -> list[str]:
        """Return the names of the functions that a tool declares."""
        return [one["name"] for one in field(tool, "functionDeclarations") or ()]

    def read(self, response: Mapping[str, Any]) -> ParsedAnswer:
        """Parse a complete answer. An answer without parts gives no message to log."""
        candidate = (response.get("candidates") or [{}])[0]
        content = {"role": "model", **(candidate.get("content") or {})}
        parts = content.get("parts") or []
        counts: Counter[str] = Counter()
        calls = []
        for call in (call for part in parts if (call := field(part, "functionCall"))):
            arguments = json.dumps(call.get("args") or {}, ensure_ascii=False)
            calls.append(ToolCall(call_id(call.get("id"), call["name"], counts), call["name"], arguments))
        stop = field(candidate, "finishReason") or field(field(response, "promptFeedback") or {}, "blockReason")
        return ParsedAnswer(
            [content] if parts else [], _text(parts), calls, usage(field(response, "usageMetadata")), stop
        )

    def accumulator(self) -> ContentStream:
        """Return a new accumulator for a streamed answer."""
        return ContentStream()


class ContentStream:
    """Accumulator of an answer's chunks, each of which has the shape of a complete answer."""

    def __init__(self) -> None:
        self._rest: dict[str, Any] = {}
        self._candidate: dict[str, Any] = {}
        self._parts: list[dict[str, Any]] = []

    @property
    def begun(self) -> bool:
        """Whether the model has begun to answer."""
        return bool(self._parts)

    @property
    def ended(self) -> bool:
        """Whether the stop reason was received."""
        return field(self._candidate, "finishReason") is not None

    @property
    def text(self) -> str:
        """The text received so far."""
        return _text(self._parts)

    def feed(self, chunk: Any) -> None:
        """Add one chunk."""
        whole = chunk if isinstance(chunk, Mapping) else chunk.model_dump(mode="json", exclude_none=True)
        self._rest |= {name: value for name, value in whole.items() if name != "candidates"}
        for candidate in (whole.get("candidates") or ())[:1]:
            self._candidate |= {name: value for name, value in candidate.items() if name != "content"}
            for part in (candidate.get("content") or {}).get("parts") or ():
                self._add(part)

    def _add(self, part: Mapping[str, Any]) -> None:
        """Add a part, or append its text to the previous part. A part with a signature stays separate, as signed."""
        before = self._parts[-1] if self._parts else {}
        texts = all("text" in one and one.keys() <= {"text", "thought"} for one in (part, before))
        if texts and bool(part.get("thought")) == bool(before.get("thought")):
            before["text"] += part["text"]
        elif part and part != {"text": ""}:
            self._parts.append(dict(part))

    def response(self) -> dict[str, Any]:
        """Return the complete answer."""
        content = {"role": "model", "parts": self._parts}
        return {**self._rest, "candidates": [{**self._candidate, "content": content}]}


def field(value: Mapping[str, Any], name: str) -> Any:
    """Return a member by its API name, also if it has the SDK's snake_case name."""
    found = value.get(name)
    return found if found is not None else value.get("".join(f"_{c.lower()}" if c.isupper() else c for c in name))


def call_id(given: str | None, name: str, counts: Counter[str]) -> str:
    """Return the id that the server gives a call: its own, else its name and number.

    Calls are numbered by name within a content; `counts` has the numbers so far and is updated.
    """
    if given:
        return given
    counts[name] += 1
    return f"{name}#{counts[name]}"


def usage(metadata: Mapping[str, Any] | None) -> UsageIn | None:
    """Return a call's usage from the answer's usage metadata."""
    if not metadata:
        return None
    outputs = [field(metadata, name) for name in ("candidatesTokenCount", "thoughtsTokenCount")]
    reported = [count for count in outputs if count is not None]
    return usage_of(
        input_tokens=field(metadata, "promptTokenCount"),
        cache_read_tokens=field(metadata, "cachedContentTokenCount"),
        output_tokens=sum(reported) if reported else None,
    )


def _text(parts: list[dict[str, Any]]) -> str:
    return "".join(part.get("text") or "" for part in parts if not part.get("thought"))


GEMINI = Gemini()
