"""Server-sent events, decoded line by line without any I/O."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Message:
    """One message of a stream."""

    event: str
    data: str
    id: str


class Decoder:
    """Turns the lines of a stream into messages. `last_id` and `retry_seconds` are what to go on with after a break."""

    def __init__(self, last_id: str | None = None) -> None:
        self.last_id = last_id
        self.retry_seconds = 1.0
        self._event, self._data = "", list[str]()

    def feed(self, line: str) -> Message | None:
        """The message that a line ends, if it ends one."""
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

    def _end(self) -> Message | None:
        event, data = self._event, self._data
        self._event, self._data = "", []
        if not data:
            return None
        return Message(event or "message", "\n".join(data), self.last_id or "")
