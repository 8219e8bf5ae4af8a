"""Decoder of server-sent events, with a size limit and without any I/O."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from palimpsest.errors import PalimpsestError

EVENT_BYTES_MAX = 64 * 1024 * 1024
"""The maximum size of an event: twice the largest request that a server accepts by default."""
_END = re.compile(rb"\r\n|\n|\r")


@dataclass(frozen=True)
class Message:
    """One message of a stream."""

    event: str
    data: str
    id: str


class Decoder:
    """Decodes a stream to messages. `last_id` and `retry_seconds` are for reconnecting after a break."""

    def __init__(self, last_id: str | None = None) -> None:
        self.last_id = last_id
        self.retry_seconds = 1.0
        self._event, self._data = "", list[str]()
        self._rest, self._searched, self._size = bytearray(), 0, 0

    def read(self, piece: bytes) -> Iterator[Message]:
        """Yield the messages that a piece completes. Raises PalimpsestError for one larger than EVENT_BYTES_MAX."""
        self._rest += piece
        start, search = 0, self._searched
        while (found := _END.search(self._rest, search)) is not None:
            if found.end() == len(self._rest) and found[0] == b"\r":  # a line feed may follow
                break
            line = self._rest[start : found.start()].decode("utf-8", "replace")
            self._size += len(line)
            self._check(self._size)
            start = search = found.end()
            message = self.feed(line)
            if message is not None:
                yield message
        del self._rest[:start]
        self._searched = max(0, len(self._rest) - 1)
        self._check(self._size + len(self._rest))

    def feed(self, line: str) -> Message | None:
        """Process a line; return the message that it completes, if any."""
        if not line:
            return self._end()
        name, _, value = line.partition(":")
        value = value[1:] if value.startswith(" ") else value
        if name == "event":
            self._event = value
        elif name == "data":
            self._data.append(value)
        elif name == "id":
            self.last_id = value
        elif name == "retry" and value.isdigit():
            self.retry_seconds = int(value) / 1000
        return None

    def _check(self, size: int) -> None:
        if size > EVENT_BYTES_MAX:
            raise PalimpsestError(f"the stream has an event of more than {EVENT_BYTES_MAX} bytes")

    def _end(self) -> Message | None:
        event, data = self._event, self._data
        self._event, self._data, self._size = "", [], 0
        if not data:
            return None
        return Message(event or "message", "\n".join(data), self.last_id or "")
