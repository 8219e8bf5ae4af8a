"""Replies of Anthropic's Messages API."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from app.core.gateway.bounds import object_or_none
from app.core.gateway.reply import GrowingText, Message, Reply, error_of, mapping, objects, text_or_none, usage_of
from app.core.log.events import Json

_THINKING = ("thinking", "redacted_thinking")


@dataclass(slots=True)
class _Block:
    """A content block of a stream: its first value, and the pieces of its fields."""

    value: dict[str, Json]
    texts: dict[str, GrowingText] = field(default_factory=dict)
    lists: dict[str, list[Json]] = field(default_factory=dict)
    arguments: GrowingText | None = None
    done: bool = False

    def add(self, delta: Mapping[str, Json]) -> None:
        """Add a delta. In an unknown kind of delta, strings continue a field and other values replace it."""
        if delta.get("type") == "input_json_delta":
            self.arguments = self.arguments or GrowingText()
            self.arguments.add(delta.get("partial_json"))
        elif delta.get("type") == "citations_delta":
            self.lists.setdefault("citations", []).append(delta.get("citation"))
        else:
            for name, piece in delta.items():
                if isinstance(piece, str) and name != "type":
                    self.texts.setdefault(name, GrowingText()).add(piece)
                elif name != "type":
                    self.value[name] = piece

    def whole(self) -> dict[str, Json] | None:
        """Return the block as far as it was received; None if that cannot be sent back."""
        value = dict(self.value)
        for name, text in self.texts.items():
            first = value.get(name)
            value[name] = f"{first if isinstance(first, str) else ''}{text}"
        for name, items in self.lists.items():
            first = value.get(name)
            value[name] = [*(first if isinstance(first, list) else ()), *items]
        if self.arguments is not None and str(self.arguments).strip():
            value["input"] = object_or_none(str(self.arguments))
            if value["input"] is None and not self.done:
                return None
            if value["input"] is None:
                value["input"] = str(self.arguments)  # the model did not write an object
        if value.get("type") == "text":
            return value if str(value.get("text") or "").strip() else None
        return value if self.done else None


class AnthropicReply:
    """Accumulates a stream of `message_start`, content blocks and `message_stop`."""

    def __init__(self) -> None:
        self._blocks: dict[int, _Block] = {}
        self._usage: dict[str, Json] = {}
        self._id: str | None = None
        self._ended = False
        self._error: Mapping[str, Json] | None = None

    def feed(self, value: Mapping[str, Json]) -> None:
        """See Accumulator."""
        kind, index = value.get("type"), value.get("index")
        if kind == "message_start":
            message = mapping(value.get("message"))
            self._usage |= mapping(message.get("usage"))
            self._id = text_or_none(message.get("id"))
        elif kind == "content_block_start" and isinstance(index, int):
            self._blocks[index] = _Block(dict(mapping(value.get("content_block"))))
        elif kind == "content_block_delta" and isinstance(index, int) and index in self._blocks:
            self._blocks[index].add(mapping(value.get("delta")))
        elif kind == "content_block_stop" and isinstance(index, int) and index in self._blocks:
            self._blocks[index].done = True
        elif kind == "message_delta":
            # These counts are of the whole reply; those that are missing are as at the start.
            usage = mapping(value.get("usage"))
            self._usage |= {name: count for name, count in usage.items() if count is not None}
        elif kind == "message_stop":
            self._ended = True
        elif kind == "error":
            self._error = error_of(value)

    def reply(self) -> Reply:
        """See Accumulator."""
        blocks = [block.whole() for _, block in sorted(self._blocks.items())]
        whole = self._ended and self._error is None
        return Reply(
            _messages([one for one in blocks if one is not None]), _usage(self._usage), whole, self._id, self._error
        )


def read(answer: Mapping[str, Json]) -> Reply:
    """Return the reply in a response that was not streamed."""
    blocks = [dict(part) for part in objects(answer.get("content"))]
    kept = [one for one in blocks if one.get("type") != "text" or str(one.get("text") or "").strip()]
    usage, whole = _usage(mapping(answer.get("usage"))), answer.get("type") == "message"
    return Reply(_messages(kept), usage, whole, text_or_none(answer.get("id")))


def _usage(reported: Mapping[str, Json]) -> Mapping[str, int | None] | None:
    return usage_of(
        input_tokens=reported.get("input_tokens"),
        cache_read_tokens=reported.get("cache_read_input_tokens"),
        cache_write_tokens=reported.get("cache_creation_input_tokens"),
        output_tokens=reported.get("output_tokens"),
    )


def _messages(blocks: list[dict[str, Json]]) -> tuple[Message, ...]:
    """Return one message, or none if nothing is left: thinking that nothing follows cannot be sent back."""
    while blocks and blocks[-1].get("type") in _THINKING:
        blocks.pop()
    return ({"role": "assistant", "content": blocks},) if blocks else ()
