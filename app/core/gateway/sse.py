"""Server-sent events, from bytes that arrive in arbitrary pieces."""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from app.core.gateway.bounds import JSON_BYTES_MAX, JSON_VALUES_MAX, TooLarge, parse_object
from app.core.log.events import Json

_END: Final = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r(?!\n))")
_LINE: Final = re.compile(rb"\r\n|\n|\r")
_END_BYTES_MAX: Final = 4


class Chunk(NamedTuple):
    """A whole event with the blank line after it, or (`event` is false) a piece of one that is too large to read."""

    raw: bytes
    event: bool


class Splitter:
    """Splits a stream into events; no byte is lost or changed.

    An event of more than JSON_BYTES_MAX is returned in pieces, and counted in `oversized`.
    """

    def __init__(self) -> None:
        self.oversized = 0
        self._rest = bytearray()
        self._searched = 0
        self._inside = False

    def feed(self, piece: bytes) -> list[Chunk]:
        """Return the events that are now complete, and pieces of those that are too large."""
        rest = self._rest
        rest += piece
        chunks: list[Chunk] = []
        start, search = 0, self._searched
        while (found := _END.search(rest, search)) is not None:
            if found.end() == len(rest) and rest[-1:] == b"\r":  # a line feed may belong to it
                break
            chunks.append(Chunk(bytes(rest[start : found.end()]), not self._inside))
            self._inside = False
            start = search = found.end()
        del rest[:start]
        if len(rest) > JSON_BYTES_MAX or (self._inside and len(rest) > _END_BYTES_MAX):
            self.oversized += not self._inside
            self._inside = True
            keep = len(rest) - _END_BYTES_MAX  # the end of the event may have begun
            chunks.append(Chunk(bytes(rest[:keep]), event=False))
            del rest[:keep]
        self._searched = max(0, len(rest) - _END_BYTES_MAX)
        return chunks

    def end(self) -> Chunk:
        """Return the bytes after the last complete event; nothing may follow."""
        rest = bytes(self._rest)
        self._rest.clear()
        return Chunk(rest, not self._inside)


def data(event: bytes) -> Mapping[str, Json] | None:
    """Return the JSON object in an event's data; None for comments, end markers and other data.

    Raises TooLarge.
    """
    if event.count(b"\n") + event.count(b"\r") > JSON_VALUES_MAX:
        raise TooLarge(f"it has more than {JSON_VALUES_MAX} lines")
    lines = [line[5:].removeprefix(b" ") for line in _LINE.split(event) if line.startswith(b"data:")]
    text = b"\n".join(lines)
    return parse_object(text) if text.startswith(b"{") else None
