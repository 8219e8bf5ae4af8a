"""Replies of OpenAI's Responses API."""

from collections.abc import Mapping
from typing import Final

from app.core.gateway.reply import GrowingText, Message, Reply, error_of, mapping, objects, usage_of
from app.core.log.events import Json

_ENDED: Final = ("response.completed", "response.incomplete")


class ResponsesReply:
    """Accumulates a stream of output items. `stored`: the provider keeps them, and knows them by their ids."""

    def __init__(self, *, stored: bool = True) -> None:
        self._items: dict[int, Mapping[str, Json]] = {}
        self._begun: dict[int, Mapping[str, Json]] = {}
        self._texts: dict[int, GrowingText] = {}
        self._stored = stored
        self._final: Mapping[str, Json] = {}
        self._id: str | None = None
        self._ended = False
        self._error: Mapping[str, Json] | None = None

    def feed(self, value: Mapping[str, Json]) -> None:
        """See Accumulator."""
        kind, index = str(value.get("type")), value.get("output_index")
        response = mapping(value.get("response"))
        if isinstance(response.get("id"), str):
            self._id = str(response["id"])
        if kind in _ENDED:
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
                self._texts.setdefault(index, GrowingText()).add(value.get("delta"))

    def reply(self) -> Reply:
        """See Accumulator."""
        items = [item for _, item in sorted({**self._unfinished(), **self._items}.items())]
        if self._ended and not items:
            items = objects(self._final.get("output"))
        whole = self._ended and self._error is None
        usage = _usage(mapping(self._final.get("usage")))
        return Reply(_sendable(items, stored=self._stored), usage, whole, self._id, self._error)

    def _unfinished(self) -> dict[int, Mapping[str, Json]]:
        """Return the messages of which only a part was received."""
        found: dict[int, Mapping[str, Json]] = {}
        for index, text in self._texts.items():
            if str(text).strip() and self._begun.get(index, {}).get("type", "message") == "message":
                content: list[Json] = [{"type": "output_text", "text": str(text), "annotations": []}]
                found[index] = {"type": "message", "role": "assistant", "status": "incomplete", "content": content}
        return found


def read(answer: Mapping[str, Json], *, stored: bool = True) -> Reply:
    """Return the reply in a response that was not streamed, read as a stream of its last event."""
    accumulator = ResponsesReply(stored=stored)
    accumulator.feed({"type": f"response.{answer.get('status')}", "response": answer})
    return accumulator.reply()


def _usage(reported: Mapping[str, Json]) -> Mapping[str, int | None] | None:
    details = mapping(reported.get("input_tokens_details"))
    return usage_of(
        input_tokens=reported.get("input_tokens"),
        cache_read_tokens=details.get("cached_tokens"),
        cache_write_tokens=details.get("cache_write_tokens"),
        output_tokens=reported.get("output_tokens"),
    )


def _sendable(items: list[Mapping[str, Json]], *, stored: bool) -> tuple[Message, ...]:
    """Return the items that can be sent back: of reasoning, items that are encrypted or stored, if others follow."""
    kept = [dict(one) for one in items if one.get("type") != "reasoning" or stored or one.get("encrypted_content")]
    while kept and kept[-1].get("type") == "reasoning":
        kept.pop()
    return tuple(one for one in kept if one.get("type") != "message" or one.get("content"))
