"""Gemini's contents and replies as they are sent: parts joined where clients differ, and the reply in a stream."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from app.core.log.events import Json
from app.core.wire.replies import Accumulator, Message, Reply, error_of, mapping, objects, reported_counts, text_or_none

_JOINED: Final = (frozenset({"text"}), frozenset({"text", "thought"}))
"""Fields of the parts that are joined; a part with a signature stays as it is, as the provider requires."""


def join_contents(contents: Sequence[Json]) -> list[Json]:
    """Return contents in which adjacent ones of the model, and adjacent texts in these, are joined.

    A client sends a streamed reply back in one content for each chunk, or in one for all of them.
    """
    found: list[Any] = []
    for content in contents:
        parts = mapping(content).get("parts")
        if not isinstance(content, Mapping) or content.get("role") != "model" or not isinstance(parts, list):
            found.append(content)
        elif found and mapping(found[-1]).get("role") == "model" and isinstance(found[-1].get("parts"), list):
            found[-1] = {**found[-1], **content, "parts": join_parts([*found[-1]["parts"], *parts])}
        else:
            found.append({**content, "parts": join_parts(parts)})
    return found


def join_parts(parts: Sequence[Json]) -> list[Json]:
    """Return parts in which adjacent texts of one kind are one text."""
    runs: list[tuple[Any, list[str]]] = []
    for part in parts:
        text = part.get("text") if isinstance(part, Mapping) and part.keys() in _JOINED else None
        if isinstance(text, str) and runs and runs[-1][1] and _thinks(runs[-1][0]) == _thinks(part):
            runs[-1][1].append(text)
        else:
            runs.append((part, [text] if isinstance(text, str) else []))
    return [{**part, "text": "".join(texts)} if texts else part for part, texts in runs]


def _thinks(part: Json) -> bool:
    return mapping(part).get("thought") is True


@dataclass(slots=True)
class GeminiReply(Accumulator):
    """A reply of `generateContent` or `streamGenerateContent`: responses with candidates that continue each other."""

    _parts: list[Json] = field(default_factory=list)
    _candidates: set[int] = field(default_factory=set)

    def feed(self, value: Mapping[str, Json]) -> None:
        """See Accumulator."""
        if value.get("error"):
            self._error = error_of(value)
        self._id = self._id if self._id is not None else text_or_none(value.get("responseId"))
        self._reported = mapping(value.get("usageMetadata")) or self._reported
        self._ended = self._ended or bool(mapping(value.get("promptFeedback")).get("blockReason"))
        for candidate in objects(value.get("candidates")):
            index = candidate.get("index", 0)
            self._candidates.add(index if isinstance(index, int) else -1)
            if index == 0:
                self._parts += objects(mapping(candidate.get("content")).get("parts"))
                self._ended = self._ended or candidate.get("finishReason") is not None

    def read(self, answer: Mapping[str, Json]) -> Reply:
        """See Accumulator."""
        self.feed(answer)
        return self.reply()

    def _messages(self, *, complete: bool) -> tuple[Message, ...]:
        """See Accumulator. Several candidates have no message to log, nor has a reply of thoughts only."""
        parts = [part for part in join_parts(self._parts) if part]
        if self._candidates != {0} or not any(_is_content(part) for part in parts):
            return ()
        return ({"role": "model", "parts": parts},)

    def _usage(self) -> Mapping[str, int | None] | None:
        """See Accumulator. The provider leaves out counts that are zero."""
        found = self._reported
        written = [found.get(name, 0) for name in ("candidatesTokenCount", "thoughtsTokenCount")]
        output = sum(count for count in written if isinstance(count, int))
        prompt = found.get("promptTokenCount")
        tools = found.get("toolUsePromptTokenCount")
        total = prompt + tools if isinstance(prompt, int) and isinstance(tools, int) else prompt
        return reported_counts(total, found.get("cachedContentTokenCount", 0), None, output)


def _is_content(part: Json) -> bool:
    value = mapping(part)
    text = value.get("text")
    return not _thinks(part) and (bool(value.keys() - {"text", "thoughtSignature"}) or bool(str(text or "").strip()))
