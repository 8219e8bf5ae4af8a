"""Streams of a session's events and changes, resumed after a broken connection."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from palimpsest._model import decode
from palimpsest._request import Request
from palimpsest._sse import Decoder, Message
from palimpsest._transport import AsyncTransport, Transport
from palimpsest.errors import ConnectionFailed, UnavailableError
from palimpsest.operations.sessions import stream_session
from palimpsest.types import CompactionChange, EpochChange, EventOut

StreamKind = Literal["appended", "epoch", "compaction"]
_DATA = {"appended": EventOut, "epoch": EpochChange, "compaction": CompactionChange}


@dataclass(frozen=True)
class StreamEvent:
    """A message of a stream: an appended event, or a change."""

    kind: StreamKind
    data: EventOut | EpochChange | CompactionChange
    id: str
    """The position in the stream, from which it can be resumed."""


class _Watch:
    """The state of a stream across connections: its position, and the number of failures."""

    def __init__(
        self, session: str, after: int | None, types: Iterable[StreamKind] | None, last_id: str | None, retries: int
    ) -> None:
        self.asked: Request[Any] = stream_session(session, after=after, types=types)
        self._retries, self._failures = retries, 0
        self.decoder = Decoder(last_id)

    def headers(self) -> dict[str, str]:
        """Return the headers for the next connection."""
        self.decoder = Decoder(self.decoder.last_id)
        return {} if self.decoder.last_id is None else {"Last-Event-ID": self.decoder.last_id}

    def read(self, piece: bytes) -> Iterator[StreamEvent]:
        """Yield the events that a piece of the stream completes."""
        self._failures = 0
        for message in self.decoder.read(piece):
            if message.event in _DATA:
                yield _typed(message)

    def failed(self) -> bool:
        """Count a failure, and return whether there were too many."""
        self._failures += 1
        return self._failures > self._retries


def _typed(message: Message) -> StreamEvent:
    data = decode(_DATA[message.event], json.loads(message.data))
    return StreamEvent(message.event, data, message.id)  # type: ignore[arg-type]  # one of _DATA's names


def watch(
    transport: Transport, session: str, after: int | None, types: Iterable[StreamKind] | None, last_id: str | None
) -> Iterator[StreamEvent]:
    """Yield the events and changes after a position, then new ones as they happen, until the caller stops."""
    state = _Watch(session, after, types, last_id, transport.options.max_retries)
    while True:
        try:
            with transport.stream(state.asked, state.headers()) as response:
                for piece in response.iter_bytes():
                    yield from state.read(piece)
        except (ConnectionFailed, UnavailableError):
            if state.failed():
                raise
        time.sleep(state.decoder.retry_seconds)


async def awatch(
    transport: AsyncTransport, session: str, after: int | None, types: Iterable[StreamKind] | None, last_id: str | None
) -> AsyncIterator[StreamEvent]:
    """Yield the events and changes after a position, then new ones as they happen, until the caller stops."""
    state = _Watch(session, after, types, last_id, transport.options.max_retries)
    while True:
        try:
            async with transport.stream(state.asked, state.headers()) as response:
                async for piece in response.aiter_bytes():
                    for event in state.read(piece):
                        yield event
        except (ConnectionFailed, UnavailableError):
            if state.failed():
                raise
        await asyncio.sleep(state.decoder.retry_seconds)
