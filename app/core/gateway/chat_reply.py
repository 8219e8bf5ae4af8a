"""Replies of OpenAI's Chat Completions API, and of the many servers that implement it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from app.core.gateway.bounds import object_or_none
from app.core.gateway.reply import GrowingText, Message, Reply, error_of, mapping, objects, text_or_none, usage_of
from app.core.log.events import Json

_REPEATED: Final = frozenset(("role", "id", "type", "index", "name", "tool_call_id"))
"""Fields that some servers repeat in every delta, and that no delta continues."""


class ChatReply:
    """Accumulates chunks, each with a delta of the message."""

    def __init__(self) -> None:
        self._message: dict[str, Any] = {}
        self._choices: set[int] = set()
        self._finished = False
        self._usage: Mapping[str, Json] = {}
        self._id: str | None = None
        self._error: Mapping[str, Json] | None = None

    def feed(self, value: Mapping[str, Json]) -> None:
        """See Accumulator."""
        if value.get("error"):
            self._error = error_of(value)
        self._id = self._id if self._id is not None else text_or_none(value.get("id"))
        self._usage = mapping(value.get("usage")) or self._usage
        for choice in objects(value.get("choices")):
            index = choice.get("index", 0)
            if not isinstance(index, int):
                continue
            self._choices.add(index)
            if index == 0:
                _merge(self._message, mapping(choice.get("delta")))
                self._finished = self._finished or choice.get("finish_reason") is not None

    def reply(self) -> Reply:
        """See Accumulator."""
        whole = self._finished and self._error is None
        message = _sendable(_built(self._message), whole=whole)
        messages = (message,) if message is not None and self._choices == {0} else ()
        return Reply(messages, _usage(self._usage), whole, self._id, self._error)


def read(answer: Mapping[str, Json]) -> Reply:
    """Return the reply in a response that was not streamed; without messages if the response offers several choices."""
    choices = answer.get("choices")
    only = choices[0] if isinstance(choices, list) and len(choices) == 1 else None
    message = _sendable(mapping(mapping(only).get("message")), whole=True)
    messages = () if message is None else (message,)
    whole = isinstance(choices, list) and bool(choices)
    return Reply(messages, _usage(mapping(answer.get("usage"))), whole, text_or_none(answer.get("id")))


def is_usage_only(value: Mapping[str, Json]) -> bool:
    """Return whether a chunk is the one that `include_usage` adds."""
    return value.get("choices") == [] and isinstance(value.get("usage"), Mapping)


def _usage(reported: Mapping[str, Json]) -> Mapping[str, int | None] | None:
    details = mapping(reported.get("prompt_tokens_details"))
    return usage_of(
        input_tokens=reported.get("prompt_tokens"),
        cache_read_tokens=details.get("cached_tokens"),
        cache_write_tokens=details.get("cache_write_tokens"),
        output_tokens=reported.get("completion_tokens"),
    )


@dataclass(slots=True)
class _GrowingList:
    """A list whose items grow by deltas that name their `index`."""

    items: list[Any] = field(default_factory=list)
    _places: dict[int | str, dict[str, Any]] = field(default_factory=dict)

    def merge(self, deltas: list[Any]) -> None:
        """Add each delta to the item of its index; a delta without an index becomes an item."""
        for delta in deltas:
            if not isinstance(delta, Mapping):
                self.items.append(delta)
                continue
            index = delta.get("index")
            item: dict[str, Any] = {}
            if isinstance(index, int | str) and index in self._places:
                item = self._places[index]
            else:
                self.items.append(item)
            if isinstance(index, int | str):
                self._places[index] = item
            _merge(item, delta)


def _merge(into: dict[str, Any], delta: Mapping[str, Json]) -> None:
    """Add a delta to a value: strings are continued, and lists merged by the `index` of their items."""
    for name, value in delta.items():
        known = into.get(name)
        if value is None:
            into.setdefault(name, None)
        elif isinstance(value, str) and isinstance(known, GrowingText):
            if name not in _REPEATED:
                known.add(value)
            elif value:
                into[name] = GrowingText([value])
        elif isinstance(value, str):
            into[name] = GrowingText([value])
        elif isinstance(value, Mapping):
            inner = known if isinstance(known, dict) else {}
            _merge(inner, value)
            into[name] = inner
        elif isinstance(value, list):
            items = known if isinstance(known, _GrowingList) else _GrowingList()
            items.merge(value)
            into[name] = items
        else:
            into[name] = value


def _built(value: Any) -> Any:
    """Return a merged value as plain JSON."""
    if isinstance(value, GrowingText):
        return str(value)
    if isinstance(value, _GrowingList):
        return [_built(item) for item in value.items]
    return {name: _built(item) for name, item in value.items()} if isinstance(value, dict) else value


def _sendable(received: Mapping[str, Any], *, whole: bool) -> Message | None:
    """Return the message as clients send it back; None if empty. Incomplete calls are removed unless it is `whole`."""
    message: dict[str, Json] = {"role": "assistant"}
    message |= {
        name: value for name, value in received.items() if value is not None and name not in ("role", "tool_calls")
    }
    if "annotations" in message and not message["annotations"]:
        del message["annotations"]
    calls = [{**one} for one in objects(received.get("tool_calls"))]
    for call in calls:
        call.pop("index", None)
    kept = [call for call in calls if whole or _is_whole(call)]
    if kept:
        message["tool_calls"] = kept
        message.setdefault("content", None)
        if message["content"] == "":
            message["content"] = None
    if not kept and not any(message.get(name) for name in ("content", "refusal", "audio", "function_call")):
        return None
    return message


def _is_whole(call: Mapping[str, Any]) -> bool:
    function = call.get("function")
    if not isinstance(function, Mapping):
        return False
    arguments = function.get("arguments")
    return isinstance(arguments, str) and object_or_none(arguments) is not None and bool(call.get("id"))
