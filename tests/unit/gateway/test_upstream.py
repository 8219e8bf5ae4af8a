"""Reading of a streamed response: linear in its size, without blocking the event loop."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from app.core.wire.bodies import JSON_BYTES_MAX
from app.core.wire.calls import CallConversation
from app.providers import SLICE_BYTES
from app.wings.gateway.upstream import STREAM_BYTES_MAX, Reader
from tests.support.bombs import bomb

EVENT_STREAM = {"content-type": "text/event-stream"}


class Turns:
    """Counts the turns of other tasks on the loop."""

    def __init__(self) -> None:
        self.number = 0
        self._task = asyncio.create_task(self._count())

    async def _count(self) -> None:
        while True:
            self.number += 1
            await asyncio.sleep(0)

    def stop(self) -> int:
        self._task.cancel()
        return self.number


DELTAS: dict[Any, Callable[[str], Any]] = {
    "openai": lambda text: {"choices": [{"index": 0, "delta": {"content": text}}]},
    "anthropic": lambda text: {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "text_delta", "text": text},
    },
    "openai-responses": lambda text: {"type": "response.output_text.delta", "output_index": 0, "delta": text},
}
BEGUN = b'data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}\n\n'


async def pieces(form: str, size: int) -> AsyncIterator[bytes]:
    """Yield a stream of deltas of about `size` bytes, in pieces as from a socket."""
    event = b"data: " + json.dumps(DELTAS[form]("word " * 200)).encode() + b"\n\n"
    yield BEGUN
    for _ in range(size // (60 * len(event))):
        yield event * 60


def calls(number: int) -> Iterator[Any]:
    """Yield the deltas of a message with `number` tool calls."""
    for index in range(number):
        call = {"index": index, "id": f"c{index}", "function": {"name": "f", "arguments": "{}"}}
        yield {"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}


def seconds(form: Any, values: list[Any]) -> float:
    """Return the least CPU time of three runs that accumulate a stream's objects into a reply."""
    found = []
    for _ in range(3):
        accumulator = CallConversation(form, ()).accumulator()
        accumulator.feed({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}})
        before = time.thread_time()
        for value in values:
            accumulator.feed(value)
        assert accumulator.reply().messages
        found.append(time.thread_time() - before)
    return min(found)


@pytest.mark.parametrize("form", [*sorted(DELTAS), "calls"])
def test_reading_time_is_linear_in_the_size(form: str) -> None:
    """A text copied for each delta, or items searched one by one, would take sixteen times as long."""

    def values(number: int) -> list[Any]:
        return list(calls(number)) if form == "calls" else [DELTAS[form]("word " * 8)] * number

    once, number = ("openai", 2_000) if form == "calls" else (form, 5_000)
    assert seconds(once, values(4 * number)) < 9 * seconds(once, values(number))


@pytest.mark.parametrize("form", sorted(DELTAS))
async def test_the_loop_has_turns_while_a_stream_is_read(form: Any) -> None:
    size = 8_000_000
    reader, turns = Reader(CallConversation(form, ()), EVENT_STREAM), Turns()
    async for _ in reader.relay(pieces(form, size)):
        pass
    assert turns.stop() >= size // SLICE_BYTES // 2


async def test_the_loop_has_turns_while_a_body_is_unpacked() -> None:
    async def whole() -> AsyncIterator[bytes]:
        yield bomb()

    reader, turns = Reader(CallConversation("openai", ()), {**EVENT_STREAM, "content-encoding": "gzip"}), Turns()
    async for _ in reader.relay(whole()):
        pass
    assert reader.unread is not None and reader.bytes < 2 * JSON_BYTES_MAX
    assert turns.stop() >= JSON_BYTES_MAX // SLICE_BYTES


async def test_a_stream_is_read_up_to_a_limit() -> None:
    reader, passed = Reader(CallConversation("openai", ()), EVENT_STREAM), 0
    async for piece in reader.relay(pieces("openai", 2 * STREAM_BYTES_MAX)):
        passed += len(piece)
    assert passed > 1.9 * STREAM_BYTES_MAX
    assert STREAM_BYTES_MAX < reader.bytes < STREAM_BYTES_MAX + JSON_BYTES_MAX
    assert reader.reply().messages and not reader.reply().complete
