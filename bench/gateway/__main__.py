"""`make bench NAME=gateway`: one growing conversation, sent to a stand-in provider directly and through the gateway.

The ways are interleaved. The latency that the gateway adds is compared with `POST …/context` for the same list, which
reads and plans as much. The stand-in is a separate process that responds immediately with a stream of one piece. Quote
the ratios, not the times.
"""

import argparse
import asyncio
import json
import multiprocessing
import socket
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import uvicorn

from app.main import create_app
from app.runtime.settings import Settings, load
from app.store import embedded, migrate
from bench.http import Http

ANSWER = (
    b'event: message_start\ndata: {"type":"message_start","message":{"id":"m","usage":{"input_tokens":%d}}}\n\n'
    b'event: content_block_start\ndata: {"type":"content_block_start","index":0,"content_block":'
    b'{"type":"text","text":""}}\n\nevent: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
    b'"delta":{"type":"text_delta","text":"I see."}}\n\nevent: content_block_stop\ndata: {"type":'
    b'"content_block_stop","index":0}\n\nevent: message_delta\ndata: {"type":"message_delta","delta":'
    b'{"stop_reason":"end_turn"},"usage":{"output_tokens":3}}\n\nevent: message_stop\n'
    b'data: {"type":"message_stop"}\n\n'
)
WORDS = "the quick brown fox jumps over the lazy dog and reads another line of the log before it answers again "
CHARS_PER_TOKEN = 5
WAYS = ("the provider itself", "passed through", "a context", "through the gateway")


class StandIn(asyncio.Protocol):
    """A provider that responds to every request with the same stream."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._wanted, self._size, self._head = 0, 0, b""

    def data_received(self, data: bytes) -> None:
        if not self._wanted:
            self._head += data
            head, end, rest = self._head.partition(b"\r\n\r\n")
            if not end:
                return
            fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
            self._size = self._wanted = int(fields[b"content-length"])
            self._head, data = b"", rest
        self._wanted -= len(data)
        if self._wanted <= 0:
            self._wanted = 0
            answer = ANSWER % (self._size // CHARS_PER_TOKEN)
            size = str(len(answer)).encode()
            self._transport.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: " + size + b"\r\n\r\n" + answer
            )


def stand_in(listener: socket.socket) -> None:
    """Serve until the process ends."""

    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(StandIn, sock=listener)
        await server.serve_forever()

    asyncio.run(run())


def serve(settings: Settings, url: str, listener: socket.socket) -> None:
    """Serve the API until the process ends."""
    config = uvicorn.Config(create_app(settings, url), log_level="error", access_log=False, ws="none")
    uvicorn.Server(config).run(sockets=[listener])


def request(turns: int, number: int) -> dict[str, Any]:
    """Return the request body after `turns` turns of a conversation."""
    messages: list[dict[str, str]] = []
    for turn in range(turns):
        messages.append({"role": "user", "content": f"{number} {turn} {WORDS * 6}"})
        messages.append({"role": "assistant", "content": "I see."})
    messages.append({"role": "user", "content": f"{number} {turns} {WORDS * 6}"})
    return {"model": "claude-sonnet-5", "max_tokens": 100, "stream": True, "messages": messages}


async def measure(port: int, provider: int, rounds: int, turns: int) -> dict[str, list[float]]:
    """Return the milliseconds of each way, by its name."""
    ours, theirs = await Http.connect(port), await Http.connect(provider)
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(rounds):
        body = request(turns + number, 0)
        raw = json.dumps(body).encode()
        context = json.dumps({"format": "anthropic", "messages": body["messages"], "model": body["model"]}).encode()
        asked = {
            "the provider itself": (theirs, "/v1/messages", raw),
            "passed through": (ours, "/gateway/anthropic/v1/messages", raw),
            "a context": (ours, "/v1/sessions/context/context", context),
            "through the gateway": (ours, "/gateway/s/gateway/anthropic/v1/messages", raw),
        }
        for way, (http, path, text) in asked.items():
            started = time.perf_counter()
            await http.request("POST", path, text)
            times[way].append((time.perf_counter() - started) * 1e3)
            await asyncio.sleep(0.02)  # the work after a response must not slow down the next one
    ours.close()
    theirs.close()
    return {way: found[1:] for way, found in times.items()}  # the first request loads everything


def listening() -> socket.socket:
    """Return a listening socket on a free port of loopback."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(64)
    return listener


def main() -> None:
    """Start everything, measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--turns", type=int, default=150, help="length of the conversation at the start")
    args = parser.parse_args()
    fork = multiprocessing.get_context("fork")
    upstream, own = listening(), listening()
    provider = upstream.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        postgres = embedded.start(Path(folder), embedded.OPTIONS)
        asyncio.run(migrate.upgrade(postgres.url))
        settings = load(gateway_anthropic_url=f"http://127.0.0.1:{provider}", log_level="error")
        processes = [
            fork.Process(target=stand_in, args=(upstream,), daemon=True),
            fork.Process(target=serve, args=(settings, postgres.url, own), daemon=True),
        ]
        for process in processes:
            process.start()
        times = asyncio.run(measure(own.getsockname()[1], provider, args.rounds, args.turns))
        for process in processes:
            process.terminate()
            process.join()
        postgres.stop()
    print(f"{args.turns} to {args.turns + args.rounds} turns; milliseconds until the answer is there, median and p95")
    for way, found in times.items():
        print(f"{way:22} {statistics.median(found):8.2f} {sorted(found)[int(len(found) * 0.95)]:8.2f}")
    added = [last - first for first, last in zip(times[WAYS[0]], times[WAYS[3]], strict=True)]
    ratio = statistics.median(added) / statistics.median(times["a context"])
    print(f"the gateway adds {statistics.median(added):.2f} ms, {ratio:.2f} times a context of the same list")


if __name__ == "__main__":
    main()
