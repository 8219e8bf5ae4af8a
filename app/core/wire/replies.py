"""Models' replies, in the form in which a client sends them back with its next request."""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import StringIO
from typing import Any, Final

from app.core.log.events import Json
from app.core.wire.bodies import object_or_none

Message = Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class Reply:
    """A provider's reply.

    `messages` are in the format of the request, empty if there is nothing to log. `usage` has the names of a reported
    outcome. `complete`: the reply is complete. `id` is the provider's own if a later request can name it. `error` is
    the error that the provider reported in the middle of a stream.
    """

    messages: tuple[Message, ...] = ()
    usage: Mapping[str, int | None] | None = None
    complete: bool = False
    id: str | None = None
    error: Mapping[str, Json] | None = None


@dataclass(slots=True)
class Accumulator(ABC):
    """Builds a reply from the objects of its stream, however many of them arrive.

    `stored`: the provider keeps the reply's items, and knows them by their ids.
    """

    stored: bool = True
    _ended: bool = False
    _reported: Mapping[str, Json] = field(default_factory=dict)
    _id: str | None = None
    _error: Mapping[str, Json] | None = None

    @abstractmethod
    def feed(self, value: Mapping[str, Json]) -> None:
        """Add the next object."""

    @abstractmethod
    def read(self, answer: Mapping[str, Json]) -> Reply:
        """Return the reply in a response that was not streamed."""

    @abstractmethod
    def _messages(self, *, complete: bool) -> tuple[Message, ...]:
        """Return the messages as received so far."""

    @abstractmethod
    def _usage(self) -> Mapping[str, int | None] | None:
        """Return the reported usage, by the names of an outcome."""

    def reply(self) -> Reply:
        """Return the reply as received so far."""
        complete = self._ended and self._error is None
        return Reply(self._messages(complete=complete), self._usage(), complete, self._id, self._error)


@dataclass(slots=True)
class AnthropicReply(Accumulator):
    """A reply of Anthropic's Messages API: `message_start`, content blocks and `message_stop`."""

    _blocks: "dict[int, _Block]" = field(default_factory=dict)

    def feed(self, value: Mapping[str, Json]) -> None:
        """See Accumulator."""
        kind, index = value.get("type"), value.get("index")
        if kind == "message_start":
            message = mapping(value.get("message"))
            self._reported = {**self._reported, **mapping(message.get("usage"))}
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
            self._reported = {**self._reported, **{name: count for name, count in usage.items() if count is not None}}
        elif kind == "message_stop":
            self._ended = True
        elif kind == "error":
            self._error = error_of(value)

    def read(self, answer: Mapping[str, Json]) -> Reply:
        """See Accumulator."""
        self.feed({"type": "message_start", "message": answer})
        self._blocks = {n: _Block(dict(one), done=True) for n, one in enumerate(objects(answer.get("content")))}
        self._ended = answer.get("type") == "message"
        return self.reply()

    def _messages(self, *, complete: bool) -> tuple[Message, ...]:
        """See Accumulator. Thinking that nothing follows cannot be sent back."""
        blocks = [found for _, one in sorted(self._blocks.items()) if (found := one.sendable()) is not None]
        while blocks and blocks[-1].get("type") in ("thinking", "redacted_thinking"):
            blocks.pop()
        return ({"role": "assistant", "content": blocks},) if blocks else ()

    def _usage(self) -> Mapping[str, int | None] | None:
        return reported_counts(
            self._reported.get("input_tokens"),
            self._reported.get("cache_read_input_tokens"),
            self._reported.get("cache_creation_input_tokens"),
            self._reported.get("output_tokens"),
        )


@dataclass(slots=True)
class _Block:
    """A content block of a stream: its first value, and the pieces of its fields."""

    value: dict[str, Json]
    texts: defaultdict[str, StringIO] = field(default_factory=lambda: defaultdict(StringIO))
    citations: list[Json] = field(default_factory=list)
    arguments: StringIO = field(default_factory=StringIO)
    done: bool = False

    def add(self, delta: Mapping[str, Json]) -> None:
        """Add a delta. In an unknown kind of delta, strings continue a field and other values replace it."""
        if delta.get("type") == "input_json_delta":
            self.arguments.write(text_or_none(delta.get("partial_json")) or "")
        elif delta.get("type") == "citations_delta":
            self.citations.append(delta.get("citation"))
        else:
            for name, piece in delta.items():
                if isinstance(piece, str) and name != "type":
                    self.texts[name].write(piece)
                elif name != "type":
                    self.value[name] = piece

    def sendable(self) -> dict[str, Json] | None:
        """Return the block as far as it was received; None if that cannot be sent back."""
        value = dict(self.value)
        for name, text in self.texts.items():
            value[name] = (text_or_none(value.get(name)) or "") + text.getvalue()
        if self.citations:
            first = value.get("citations")
            value["citations"] = [*(first if isinstance(first, list) else ()), *self.citations]
        if (written := self.arguments.getvalue()).strip():
            value["input"] = object_or_none(written)
            if value["input"] is None and not self.done:
                return None
            if value["input"] is None:
                value["input"] = written  # the model did not write an object
        if value.get("type") == "text":
            return value if str(value.get("text") or "").strip() else None
        return value if self.done else None


@dataclass(slots=True)
class ResponsesReply(Accumulator):
    """A reply of OpenAI's Responses API: a stream of output items."""

    _items: dict[int, Mapping[str, Json]] = field(default_factory=dict)
    _begun: dict[int, Mapping[str, Json]] = field(default_factory=dict)
    _texts: defaultdict[int, StringIO] = field(default_factory=lambda: defaultdict(StringIO))
    _final: Mapping[str, Json] = field(default_factory=dict)

    def feed(self, value: Mapping[str, Json]) -> None:
        """See Accumulator."""
        kind, index = str(value.get("type")), value.get("output_index")
        response = mapping(value.get("response"))
        if isinstance(response.get("id"), str):
            self._id = response["id"]
        if kind in ("response.completed", "response.incomplete"):
            self._ended, self._final = True, response
        elif kind == "response.failed":
            self._final, self._error = response, error_of(response)
        elif kind == "error":
            self._error = error_of(value)
        elif isinstance(index, int):
            if kind == "response.output_item.added":
                self._begun[index] = mapping(value.get("item"))
            elif kind == "response.output_item.done":
                self._items[index] = mapping(value.get("item"))
            elif kind == "response.output_text.delta":
                self._texts[index].write(text_or_none(value.get("delta")) or "")

    def read(self, answer: Mapping[str, Json]) -> Reply:
        """See Accumulator."""
        self.feed({"type": f"response.{answer.get('status')}", "response": answer})
        return self.reply()

    def _messages(self, *, complete: bool) -> tuple[Message, ...]:
        """See Accumulator. Reasoning is sent back if it is encrypted or stored, and another item follows."""
        items = [item for _, item in sorted({**self._partial_messages(), **self._items}.items())]
        if self._ended and not items:
            items = objects(self._final.get("output"))
        kept = [one for one in items if one.get("type") != "reasoning" or self.stored or one.get("encrypted_content")]
        while kept and kept[-1].get("type") == "reasoning":
            kept.pop()
        return tuple(dict(one) for one in kept if one.get("type") != "message" or one.get("content"))

    def _partial_messages(self) -> dict[int, Mapping[str, Json]]:
        """Return the messages of which only a part was received."""
        found: dict[int, Mapping[str, Json]] = {}
        for index, text in ((index, text.getvalue()) for index, text in self._texts.items()):
            if text.strip() and self._begun.get(index, {}).get("type", "message") == "message":
                content: list[Json] = [{"type": "output_text", "text": text, "annotations": []}]
                found[index] = {"type": "message", "role": "assistant", "status": "incomplete", "content": content}
        return found

    def _usage(self) -> Mapping[str, int | None] | None:
        return _openai_counts(mapping(self._final.get("usage")), "input_tokens", "output_tokens")


@dataclass(slots=True)
class ChatReply(Accumulator):
    """A reply of OpenAI's Chat Completions API, or of a server that implements it: chunks with deltas of a message."""

    _message: dict[str, Any] = field(default_factory=dict)
    _choices: set[int] = field(default_factory=set)

    def feed(self, value: Mapping[str, Json]) -> None:
        """See Accumulator."""
        if value.get("error"):
            self._error = error_of(value)
        self._id = self._id if self._id is not None else text_or_none(value.get("id"))
        self._reported = mapping(value.get("usage")) or self._reported
        for choice in objects(value.get("choices")):
            index = choice.get("index", 0)
            if not isinstance(index, int):
                continue
            self._choices.add(index)
            if index == 0:
                _merge(self._message, mapping(choice.get("delta")))
                self._ended = self._ended or choice.get("finish_reason") is not None

    def read(self, answer: Mapping[str, Json]) -> Reply:
        """See Accumulator. A response that offers several choices has no message to log."""
        choices = answer.get("choices")
        only = choices[0] if isinstance(choices, list) and len(choices) == 1 else None
        self._message, self._choices = dict(mapping(mapping(only).get("message"))), {0}
        self._ended = isinstance(choices, list) and bool(choices)
        self._reported, self._id = mapping(answer.get("usage")), text_or_none(answer.get("id"))
        return self.reply()

    def _messages(self, *, complete: bool) -> tuple[Message, ...]:
        """See Accumulator. Calls whose arguments are incomplete are removed unless the reply is complete."""
        received: Mapping[str, Any] = _plain_json(self._message)
        left_out = ("role", "tool_calls")
        message: dict[str, Json] = {"role": "assistant"}
        message |= {name: value for name, value in received.items() if value is not None and name not in left_out}
        if "annotations" in message and not message["annotations"]:
            del message["annotations"]
        calls = [
            {name: value for name, value in call.items() if name != "index"}
            for call in objects(received.get("tool_calls"))
            if complete or _is_whole(call)
        ]
        if calls:
            message["tool_calls"] = calls
            message["content"] = None if message.get("content") == "" else message.get("content")
        elif not any(message.get(name) for name in ("content", "refusal", "audio", "function_call")):
            return ()
        return (message,) if self._choices == {0} else ()

    def _usage(self) -> Mapping[str, int | None] | None:
        return _openai_counts(self._reported, "prompt_tokens", "completion_tokens")


def is_usage_only(value: Mapping[str, Json]) -> bool:
    """Return whether a chunk of a chat completion is the one that `include_usage` adds."""
    return value.get("choices") == [] and isinstance(value.get("usage"), Mapping)


class _GrowingList(dict[object, Any]):
    """The items of a list by the `index` that their deltas name, or by a key of their own."""


_REPEATED: Final = frozenset(("role", "id", "type", "index", "name", "tool_call_id"))
"""Fields that some servers repeat in every delta, and that no delta continues."""


def _merge(into: dict[str, Any], delta: Mapping[str, Json]) -> None:
    """Add a delta to a value: strings are continued, and lists merged by the `index` of their items."""
    for name, value in delta.items():
        known = into.get(name)
        if value is None:
            into.setdefault(name, None)
        elif isinstance(value, str):
            if not isinstance(known, StringIO) or (value and name in _REPEATED):
                known = into[name] = StringIO()
            known.write(value)
        elif isinstance(value, Mapping):
            inner = known if type(known) is dict else {}
            _merge(inner, value)
            into[name] = inner
        elif isinstance(value, list):
            items = known if isinstance(known, _GrowingList) else _GrowingList()
            for one in value:
                index = one.get("index") if isinstance(one, Mapping) else None
                key = index if isinstance(index, int | str) else object()
                if isinstance(one, Mapping):
                    _merge(items.setdefault(key, {}), one)
                else:
                    items[key] = one
            into[name] = items
        else:
            into[name] = value


def _plain_json(value: Any) -> Any:
    """Return a merged value as plain JSON."""
    if isinstance(value, StringIO):
        return value.getvalue()
    if isinstance(value, _GrowingList):
        return [_plain_json(item) for item in value.values()]
    return {name: _plain_json(item) for name, item in value.items()} if isinstance(value, dict) else value


def _is_whole(call: Mapping[str, Any]) -> bool:
    arguments = mapping(call.get("function")).get("arguments")
    return isinstance(arguments, str) and object_or_none(arguments) is not None and bool(call.get("id"))


def mapping(value: Json) -> Mapping[str, Json]:
    """Return the value if it is an object, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def objects(value: Json) -> list[Mapping[str, Json]]:
    """Return the objects in a list; none for any other value."""
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


def text_or_none(value: Json) -> str | None:
    """Return the value if it is a text."""
    return value if isinstance(value, str) else None


def _openai_counts(reported: Mapping[str, Json], total: str, output: str) -> Mapping[str, int | None] | None:
    details = mapping(reported.get(f"{total}_details"))
    cached = details.get("cached_tokens"), details.get("cache_write_tokens")
    return reported_counts(reported.get(total), *cached, reported.get(output))


def reported_counts(total: Json, read: Json, written: Json, output: Json) -> Mapping[str, int | None] | None:
    """Return a provider's usage as an outcome reports it; None if the input was not counted."""
    names = ("input_tokens", "cache_read_tokens", "cache_write_tokens", "output_tokens")
    counts = {
        name: value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
        for name, value in zip(names, (total, read, written, output), strict=True)
    }
    return None if counts["input_tokens"] is None else counts


def error_of(value: Mapping[str, Json]) -> Mapping[str, Json]:
    """Return a provider's error as an outcome reports it."""
    inner = value.get("error")
    error = inner if isinstance(inner, Mapping) else value
    message, code = error.get("message"), error.get("code") or error.get("type")
    out: dict[str, Json] = {"message": message if isinstance(message, str) else inner if isinstance(inner, str) else ""}
    if isinstance(code, str):
        out["code"] = code
    return out
