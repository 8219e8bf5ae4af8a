"""Server-sent events, from bytes that come in any pieces."""

import json
import re
from collections.abc import Mapping
from typing import Final

from app.core.log.events import Json

_END: Final = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r(?!\n))")
_LINE: Final = re.compile(rb"\r\n|\n|\r")
_END_BYTES_MAX: Final = 4


class Splitter:
    """Splits a stream into whole events, each with the blank line behind it; no byte is lost or changed."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._searched = 0

    def feed(self, piece: bytes) -> list[bytes]:
        """The events that are whole now."""
        rest = self._rest
        rest += piece
        whole: list[bytes] = []
        start, search = 0, self._searched
        while (found := _END.search(rest, search)) is not None:
            if found.end() == len(rest) and rest[-1:] == b"\r":  # a line feed may belong to it
                break
            whole.append(bytes(rest[start : found.end()]))
            start = search = found.end()
        del rest[:start]
        self._searched = max(0, len(rest) - _END_BYTES_MAX)
        return whole

    def end(self) -> bytes:
        """What came behind the last whole event; nothing may follow."""
        rest = bytes(self._rest)
        self._rest.clear()
        return rest


def data(event: bytes) -> Mapping[str, Json] | None:
    """The JSON object in an event's data; None for comments, the mark of an end, and what is no object."""
    lines = [line[5:].removeprefix(b" ") for line in _LINE.split(event) if line.startswith(b"data:")]
    text = b"\n".join(lines)
    if not text.startswith(b"{"):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
