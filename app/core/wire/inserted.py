"""Compaction items at the beginning of replies; everything else stays as the provider wrote it."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from app.core.log.events import Json
from app.core.wire.bodies import Body, NoObject, event_text, parse, with_event_text
from app.core.wire.compacted import FORMAT, block_events, item_events, stream_event


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
