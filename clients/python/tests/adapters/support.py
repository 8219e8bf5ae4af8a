"""Code shared by the adapters' tests: a gate to the real server, and a long task for an agent."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from palimpsest import Palimpsest

Json = dict[str, Any]
ROUNDS = 20
ROOM = 6_000
"""Window in tokens; twenty reports take four times as many."""
CHARS_PER_TOKEN = 4
POLICY = {"reserve_tokens": 500}
TROUBLES = ("broken", "garbage", "hollow", "refusing", "midway", "silent")
"""Modes of a gate in which no context is made."""
TOO_LONG = "This model's maximum context length is 12000 tokens. However, your messages resulted in 12500 tokens."


def report(number: int) -> str:
    """Return the tool's result: some 1,200 tokens, different for each number."""
    lines = [f"Item {number}-{n}: crate {n * 7919 % 997} of depot {number} was weighed and sealed." for n in range(64)]
    return "\n".join(lines)


def size(messages: Any) -> int:
    """Return an upper estimate of the tokens of a model's input."""
    return len(messages if isinstance(messages, str) else json.dumps(messages, default=str)) // CHARS_PER_TOKEN


ANSWERS = {
    "failing": (503, b'{"type": "/problems/unavailable", "detail": "shut"}'),
    "broken": (500, b"Internal Server Error", "text/plain"),
    "garbage": (200, b"<html>Please log in.</html>", "text/html"),
    "hollow": (200, b"{}", "application/json"),
    "locked": (401, b'{"type": "/problems/unauthorized", "detail": "this key does not work"}'),
    "refusing": (422, b'{"type": "/problems/invalid-message", "detail": "unknown role", "field": "role"}'),
}


@dataclass
class Gate:
    """A reverse proxy on loopback.

    It forwards requests (`open`), responds with 503 (`failing`), 500 (`broken`), a page (`garbage`), an empty object
    (`hollow`) or 422 (`refusing`), does not respond before any timeout (`silent`), or fails after the next context
    (`midway`).
    """

    target: str
    mode: str = "open"
    url: str = ""
    timeout: float = 10.0
    """Adapters' setting of that name, changed by `trouble`."""
    seen: list[tuple[str, str, Any, Any]] = field(default_factory=list)
    """Each forwarded request: method, path, body, response."""

    def posted(self, ending: str) -> list[tuple[Any, Any]]:
        """Return bodies and responses of the POST requests whose path has this ending."""
        return [
            (body, answer) for method, path, body, answer in self.seen if method == "POST" and path.endswith(ending)
        ]

    @property
    def contexts(self) -> list[tuple[Any, Any]]:
        """Bodies and responses of the context requests."""
        return self.posted("/context")

    @property
    def outcomes(self) -> list[Any]:
        """Bodies of the reported outcomes."""
        return [body for body, _ in self.posted("/outcome")]

    def trouble(self, mode: str) -> None:
        """Enter a mode in which no context is made; call it before an adapter is created."""
        self.mode, self.timeout = mode, 2.0 if mode == "silent" else 10.0

    def client(self, **more: Any) -> Palimpsest:
        """Return a client of the server that uses the gate."""
        return Palimpsest(base_url=self.url, **more)

    def events(self, session: str) -> list[Any]:
        """Return the events of a session."""
        return list(self.client().session(session).list_events())


@contextmanager
def gate(target: str) -> Iterator[Gate]:
    """Listen while the block lasts."""
    state = Gate(target)
    done = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1

        def _pass_on(self) -> None:
            sent = self.rfile.read(int(self.headers.get("content-length") or 0))
            if state.mode == "silent":
                done.wait(30)
                self.close_connection = True
                return
            if state.mode in ANSWERS:
                self._answer(*ANSWERS[state.mode])
                return
            if state.mode == "midway" and self.path.endswith("/context"):
                state.mode = "failing"
            there = HTTPConnection(urlsplit(state.target).netloc, timeout=30)
            kept = {n: v for n, v in self.headers.items() if n.lower() not in ("host", "connection", "accept-encoding")}
            there.request(self.command, self.path, sent or None, kept)
            answer = there.getresponse()
            body = answer.read()
            there.close()
            entry = (self.command, urlsplit(self.path).path, _json(sent), _json(body))
            state.seen.append(entry)
            self._answer(answer.status, body, answer.headers.get("content-type", "application/json"))

        def _answer(self, status: int, body: bytes, kind: str = "application/problem+json") -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = _pass_on

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield state
    finally:
        done.set()
        server.shutdown()
        server.server_close()


@contextmanager
def chat_provider(answer: Callable[[Json], Json]) -> Iterator[str]:
    """Yield the base URL of a stand-in of OpenAI's chat completions, whose replies `answer` returns for requests.

    A reply with an `error` is a refusal.
    """
    numbers = itertools.count(1)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if not self.path.endswith("/chat/completions"):
                self.send_error(404)
                return
            message = answer(body)
            if "error" in message:
                self._say(json.dumps(message), "application/json", 400)
                return
            prompt = size(body["messages"])
            usage = {"prompt_tokens": prompt, "completion_tokens": 7, "total_tokens": prompt + 7}
            whole: Json = {"id": f"c{next(numbers)}", "created": 1, "model": body["model"]}
            end = "tool_calls" if "tool_calls" in message else "stop"
            if body.get("stream"):
                calls = [{"index": n, **one} for n, one in enumerate(message.pop("tool_calls", ()))]
                deltas = [{**message, **({"tool_calls": calls} if calls else {})}, {}]
                whole["object"] = "chat.completion.chunk"
                chunks: list[Json] = [
                    {**whole, "choices": [{"index": 0, "delta": delta, "finish_reason": stop}]}
                    for delta, stop in zip(deltas, (None, end), strict=True)
                ]
                chunks.append({**whole, "choices": [], "usage": usage})
                lines = [f"data: {json.dumps(one)}\n\n" for one in chunks]
                self._say("".join([*lines, "data: [DONE]\n\n"]), "text/event-stream")
                return
            choice = {"index": 0, "message": message, "finish_reason": end}
            self._say(
                json.dumps({**whole, "object": "chat.completion", "choices": [choice], "usage": usage}),
                "application/json",
            )

        def _say(self, text: str, kind: str, status: int = 200) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()


def warnings_of(caplog: Any) -> list[str]:
    """Return the kinds of the warnings about contexts that were not made."""
    kinds = {"the server is unreachable": "away", "the server is back": "back", "no context was made": "refused"}
    messages = [record.message for record in caplog.records if record.name == "palimpsest"]
    return [kind for message in messages for words, kind in kinds.items() if words in message]


def expected_warnings(trouble: str) -> list[str]:
    """Return the kinds of warnings for a trouble and its end."""
    return ["refused"] if trouble == "refusing" else ["away", "back"]


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None


def until(condition: Any, seconds: float = 30.0) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)
