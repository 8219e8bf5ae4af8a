"""A peer in a process and an environment of its own: commands are lines of JSON on stdin, responses on stdout.

`["fill", 0, 1000]` appends the messages with these numbers, `["append", 1000]` one more, `["context"]` returns the
messages a model would be shown. Only the peer's own work is timed; its messages are made before.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from importlib.metadata import version
from typing import Any, Protocol

import uvloop

from bench.peers.conversation import Message, message


class Peer(Protocol):
    """A session store, with one session."""

    def native(self, given: Message) -> Any:
        """Return a message in the peer's own form."""

    async def fill(self, natives: Sequence[Any]) -> None:
        """Append many messages, in as few calls as the peer allows."""

    async def append(self, native: Any) -> None:
        """Append one message."""

    async def context(self) -> Sequence[Any]:
        """Return the newest messages that fit the budget, by the peer's own means."""


def serve(opened: Callable[[str], AbstractAsyncContextManager[Peer]], *packages: str) -> None:
    """Run commands until stdin ends; the database's URL is the program's first argument."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    sys.stdout = sys.stderr  # keep a library's output out of the responses

    async def main() -> None:
        async with opened(sys.argv[1]) as peer:
            print(json.dumps({name: version(name) for name in packages}), file=answers)
            while line := await asyncio.to_thread(sys.stdin.readline):
                print(json.dumps(await _obey(peer, *json.loads(line))), file=answers)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


async def _obey(peer: Peer, command: str, *numbers: int) -> dict[str, float]:
    natives = [peer.native(message(number)) for number in range(*numbers)] if command == "fill" else []
    one = peer.native(message(numbers[0])) if command == "append" else None
    messages: Sequence[Any] = ()
    begun = time.perf_counter()
    match command:
        case "fill":
            await peer.fill(natives)
        case "append":
            await peer.append(one)
        case _:
            messages = await peer.context()
    return {"seconds": time.perf_counter() - begun, "messages": len(messages)}
