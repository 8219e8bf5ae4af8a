"""Compaction items of ours in clients' lists, and the answers of providers' APIs that hold one.

An item replaces all messages before it. Its content is opaque here: it begins with MARK, by which ours are known. An
item is inserted at the beginning of a reply; everything else in that stays as the provider wrote it.
"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from app.core.log.events import Json
from app.core.wire.bodies import Body, NoObject, event_text, parse, with_event_text
from app.core.wire.replies import mapping, objects

MARK: Final = "palimpsest.1."
"""The beginning of the content of every item of ours, which no provider's has."""
FORMAT: Final = "openai-responses"
LISTS: Final[Mapping[str, str]] = {FORMAT: "input", "anthropic": "messages"}
"""The fields with the client's list, by formats that have compaction items."""
TYPES: Final = ("compaction", "compaction_summary")
"""The types of compaction items; older versions of Codex send them back with the second one."""
PLACEHOLDER: Final[Mapping[str, Json]] = {"role": "user", "content": "-"}
"""A message in place of an item, so that no reader takes a system message after it for the client's prompt."""
TRIGGER: Final = "compaction_trigger"
"""The type of the last item of a Responses call that requests a compaction and no reply."""
_SEALED: Final = re.compile(re.escape(MARK) + r"[\w=-]*")
NO_USAGE: Final[Mapping[str, Json]] = {
    "input_tokens": 0,
    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
    "output_tokens": 0,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 0,
}
"""The usage of a compaction for which no model was called."""
NO_ANTHROPIC_USAGE: Final[Mapping[str, Json]] = {
    "input_tokens": 0,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 0,
    "output_tokens": 0,
}


@dataclass(frozen=True, slots=True)
class CompactedPlace:
    """The end of the messages that an item replaces: a session, the row of its line, a seq, and the hash of the chain
    there (hexadecimal). `paused`: no reply followed the item."""

    session: str
    line: str
    seq: int
    hash: str
    paused: bool = False


@dataclass(frozen=True, slots=True)
class CompactedList:
    """A client's list with an item of ours: the prompts at its beginning, the content of the last item, and the
    messages after it. The messages between the prompts and the item are in the log. `field` is the body's field with
    the list."""

    field: str
    prompts: Sequence[Json]
    sealed: str
    after: Sequence[Json]

    @property
    def messages(self) -> list[Json]:
        """The list without its messages in the log; the placeholder follows the prompts."""
        return [*self.prompts, PLACEHOLDER, *self.after]


def find_item(form: str, body: Body) -> CompactedList | None:
    """Return a call's list at its last compaction item of ours; None without one."""
    field = LISTS.get(form)
    given = body.value.get(field) if field is not None and MARK in body.text else None
    if field is None or not isinstance(given, list):
        return None
    for index in range(len(given) - 1, -1, -1):
        for sealed, rest in _items_in(form, given[index]):
            prompts = list(takewhile(_is_prompt, given[:index]))
            return CompactedList(field, prompts, sealed, [*rest, *given[index + 1 :]])
    return None


def _items_in(form: str, message: Json) -> Iterator[tuple[str, list[Json]]]:
    """Yield the content of each item of ours in a message, the last one first, and the message after the item, if any.

    Anthropic's items are parts of messages.
    """
    if form == FORMAT:
        parts: list[Json] = [message]
    else:
        content = mapping(message).get("content")
        parts = content if isinstance(content, list) else []
    for number in range(len(parts) - 1, -1, -1):
        if (sealed := sealed_in(mapping(parts[number]))) is not None:
            rest = parts[number + 1 :]
            yield sealed, [{**mapping(message), "content": rest}] if rest else []


def sealed_in(item: Mapping[str, Json]) -> str | None:
    """Return the sealed place in a compaction item of ours; None for anything else.

    The Messages API's items have it within a text.
    """
    if item.get("type") not in TYPES:
        return None
    whole, text = item.get("encrypted_content"), item.get("content")
    if isinstance(whole, str) and whole.startswith(MARK):
        return whole
    found = _SEALED.search(text) if isinstance(text, str) else None
    return None if found is None else found[0]


def _is_prompt(message: Json) -> bool:
    return mapping(message).get("role") in ("system", "developer")


def is_triggered(form: str, body: Body) -> bool:
    """Return whether the last item of a Responses call requests a compaction in place of a reply."""
    items = objects(body.value.get("input"))
    return form == FORMAT and bool(items) and items[-1].get("type") == TRIGGER


def without_trigger(body: Body) -> Body:
    """Return a call's body without the item that requests a compaction, to be read."""
    items = body.value.get("input")
    kept = [one for one in items if mapping(one).get("type") != TRIGGER] if isinstance(items, list) else items
    return body.read_with("input", kept)


def responses_item(number: str, sealed: str) -> dict[str, Json]:
    """Return an item of the Responses API; `number` makes its id."""
    return {"id": f"cmp_{number}", "type": "compaction", "encrypted_content": sealed}


def compaction_object(number: str, created_at: int, sealed: str) -> dict[str, Json]:
    """Return the answer to a request for a compaction (`responses/compact`): the item alone."""
    return {
        "id": f"resp_{number}",
        "object": "response.compaction",
        "created_at": created_at,
        "output": [responses_item(number, sealed)],
        "usage": NO_USAGE,
    }


def triggered_response(number: str, created_at: int, model: str | None, sealed: str) -> dict[str, Json]:
    """Return the response to a call that ends with a trigger: the item alone."""
    return {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": created_at,
        "model": model or "",
        "status": "completed",
        "output": [responses_item(number, sealed)],
        "usage": NO_USAGE,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }


def triggered_stream(response: Mapping[str, Json]) -> bytes:
    """Return the stream of a response to a trigger."""
    begun = {**response, "status": "in_progress", "output": [], "usage": None}
    events: list[dict[str, Json]] = [{"type": "response.created", "response": begun}]
    for item in objects(response["output"]):
        events += item_events(item)
    events.append({"type": "response.completed", "response": response})
    return b"".join(stream_event({**event, "sequence_number": n}) for n, event in enumerate(events))


def item_events(item: Mapping[str, Json], number: Json = None) -> list[dict[str, Json]]:
    """Return the two events of the first item in a response's stream; `number` is the sequence number of the first."""
    numbers = [{"sequence_number": number + step} if isinstance(number, int) else {} for step in range(2)]
    return [
        {"type": f"response.output_item.{step}", "output_index": 0, "item": item, **numbered}
        for step, numbered in zip(("added", "done"), numbers, strict=True)
    ]


def anthropic_block(summary: str, sealed: str) -> dict[str, Json]:
    """Return a block of the Messages API, with a text that another provider's model can read."""
    return {"type": "compaction", "content": f"{summary}\n\n(Reference to the complete conversation: {sealed})"}


def block_events(block: Mapping[str, Json]) -> list[dict[str, Json]]:
    """Return the events of the first block in a message's stream."""
    return [
        {"type": "content_block_start", "index": 0, "content_block": {**block, "content": None}},
        {"type": "content_block_delta", "index": 0, "delta": {**block, "type": "compaction_delta"}},
        {"type": "content_block_stop", "index": 0},
    ]


def paused_message(number: str, model: str | None, block: Mapping[str, Json]) -> dict[str, Json]:
    """Return the response to a call that pauses after its compaction: the block alone."""
    return {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": model or "",
        "content": [block],
        "stop_reason": "compaction",
        "stop_sequence": None,
        "usage": NO_ANTHROPIC_USAGE,
    }


def paused_stream(message: Mapping[str, Json]) -> bytes:
    """Return the stream of a response to a call that pauses."""
    stop = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    begun = {**message, "content": [], "stop_reason": None}
    events: list[dict[str, Json]] = [{"type": "message_start", "message": begun}]
    for block in objects(message["content"]):
        events += block_events(block)
    events += [{"type": "message_delta", "delta": stop, "usage": message["usage"]}, {"type": "message_stop"}]
    return b"".join(map(stream_event, events))


def stream_event(value: Mapping[str, Json]) -> bytes:
    """Return an event of a stream."""
    return f"event: {value['type']}\ndata: {json.dumps(value)}\n\n".encode()


@dataclass(slots=True)
class Insertion(ABC):
    """Inserts an item at the beginning of a reply. `inserted`: the events after it get new numbers."""

    item: Mapping[str, Json]
    inserted: bool = False

    @abstractmethod
    def rewrite_event(self, event: bytes, value: Mapping[str, Json]) -> bytes:
        """Return the bytes to send for an event of a stream, given with its value."""

    @abstractmethod
    def rewrite_response(self, text: bytes) -> bytes:
        """Return the bytes to send for a response that is not streamed."""

    def _in_list(self, body: Body, name: str) -> dict[str, str]:
        """Return the member of an object that holds a list, beginning with the item; nothing if it holds none."""
        text, listed = body.raw(name), body.value.get(name)
        if text is None or not isinstance(listed, list):
            return {}
        return {name: f"[{json.dumps(self.item)}{', ' if listed else ''}{text[1:]}"}


@dataclass(slots=True)
class AnthropicInsertion(Insertion):
    """Inserts a block at the beginning of a message's content."""

    def rewrite_event(self, event: bytes, value: Mapping[str, Json]) -> bytes:
        """See Insertion."""
        if value.get("type") == "message_start":
            self.inserted = True
            return event + b"".join(map(stream_event, block_events(self.item)))
        index = value.get("index")
        body = _body_or_none(event_text(event)) if self.inserted and isinstance(index, int) else None
        if body is None or not isinstance(index, int):
            return event
        return with_event_text(event, body.with_members({"index": str(index + 1)}))

    def rewrite_response(self, text: bytes) -> bytes:
        """See Insertion."""
        body = _body_or_none(text)
        if body is None or body.value.get("type") != "message":
            return text
        return body.with_members(self._in_list(body, "content")).encode()


@dataclass(slots=True)
class ResponsesInsertion(Insertion):
    """Inserts an item at the beginning of a response's output."""

    def rewrite_event(self, event: bytes, value: Mapping[str, Json]) -> bytes:
        """See Insertion."""
        number, index, before = value.get("sequence_number"), value.get("output_index"), b""
        if not self.inserted and (isinstance(index, int) or value.get("type") in _ENDS):
            self.inserted = True
            before = b"".join(map(stream_event, item_events(self.item, number)))
        body = _body_or_none(event_text(event)) if self.inserted else None
        if body is None:
            return before + event
        changed = {} if (response := body.raw("response")) is None else self._in_response(response)
        if isinstance(index, int):
            changed["output_index"] = str(index + 1)
        if isinstance(number, int):
            changed["sequence_number"] = str(number + 2)
        return before + with_event_text(event, body.with_members(changed))

    def _in_response(self, text: str) -> dict[str, str]:
        body = _body_or_none(text.encode())
        return {} if body is None else {"response": body.with_members(self._in_list(body, "output"))}

    def rewrite_response(self, text: bytes) -> bytes:
        """See Insertion."""
        body = _body_or_none(text)
        if body is None or f"response.{body.value.get('status')}" not in _ENDS:
            return text
        return body.with_members(self._in_list(body, "output")).encode()


_ENDS: Final = ("response.completed", "response.incomplete")
INSERTIONS: Final[Mapping[str, type[Insertion]]] = {FORMAT: ResponsesInsertion, "anthropic": AnthropicInsertion}
"""Insertions by format."""


def _body_or_none(text: bytes) -> Body | None:
    try:
        return parse(text)
    except NoObject:
        return None
