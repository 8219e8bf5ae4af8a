"""The functions of `app` that a request passes: the part of the code that a reader must know to follow it.

The walks are taken in one process, over the ASGI interface, once caches are warm. Counted are named functions (no
lambdas, comprehensions or generated methods) that run in the request's own thread. The edge is HTTP and telemetry; the
connection pool is left out, since every statement passes it in the same way.
"""

import ast
import asyncio
import math
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

import httpx

from app import tenants
from app.cli import options
from app.main import create_app
from app.runtime.settings import Settings
from app.store import embedded, migrate
from app.wings.sealing import service as sealing

APP = Path(__file__).parent.parent.parent / "app"
EDGE = ("http/", "tracing.py", "main.py", "runtime/", "wings/telemetry/")
EDGE_MODULES = ("routes.py", "schemas.py", "json.py")
POOL = ("store/engine.py", "store/driver.py", "runtime/wing.py", "wings/shards/__init__.py")
"""Modules of the connection pool, and those with which it looks at its first connection."""
SMALL_LINES = 2
"""A function of no more lines of code than this is read where it is called, and not counted beyond the edge."""

POST, HELD, OPENING = "POST events", "GET context, held in memory", "GET context, opening an epoch"
_MESSAGE = {"type": "user.message", "content": "What is in the file?"}


@dataclass(frozen=True, slots=True)
class Function:
    """A function of `app`: its module's path below `app`, its qualified name, and its lines of code."""

    module: str
    name: str
    lines: int

    @property
    def at_edge(self) -> bool:
        """Whether it belongs to HTTP or logs."""
        return self.module.startswith(EDGE) or self.module.endswith(EDGE_MODULES)


@dataclass(frozen=True, slots=True)
class Walk:
    """The calls of one request in order, each with its depth: the number of callers in `app`, itself included."""

    calls: tuple[tuple[Function, int], ...]

    @property
    def functions(self) -> dict[Function, int]:
        """Each function once, in the order of its first call, with the depth of that."""
        first: dict[Function, int] = {}
        for function, depth in self.calls:
            first.setdefault(function, depth)
        return first

    def figures(self) -> dict[str, int]:
        """Functions and modules beyond and at the edge, the greatest depth, and calls of functions called before."""
        beyond = [f for f in self.functions if not f.at_edge and f.lines > SMALL_LINES]
        return {
            "functions beyond the edge": len(beyond),
            "modules beyond the edge": len({f.module for f in beyond}),
            "functions at the edge": sum(f.at_edge for f in self.functions),
            "depth": max(depth for _, depth in self.calls),
            "calls of a function called before": len(self.calls) - len(self.functions),
        }


_recorder: ContextVar["_Recorder"] = ContextVar("recorder")
"""The recorder of the request that a task belongs to: tasks inherit it from the task that starts them."""


class _Recorder:
    """A profile function that records the first entry of each frame of `app`."""

    def __init__(self) -> None:
        self.calls: list[tuple[Function, int]] = []
        self._entered: set[FrameType] = set()

    def __call__(self, frame: FrameType, event: str, _value: Any) -> None:
        if event != "call" or frame in self._entered:  # a coroutine that is resumed is entered again
            return
        if _recorder.get(None) is not self:  # a background task of the application
            return
        if (function := _function(frame)) and not function.module.startswith(POOL):
            self._entered.add(frame)
            self.calls.append((function, _depth(frame)))


def _function(frame: FrameType) -> Function | None:
    code = frame.f_code
    path = Path(code.co_filename)
    if code.co_name.startswith("<") or not path.is_relative_to(APP):
        return None
    lines = {line for *_, line in code.co_lines() if line and line != code.co_firstlineno}
    return Function(path.relative_to(APP).as_posix(), code.co_qualname, len(lines))


def _depth(frame: FrameType | None) -> int:
    depth = 0
    while frame:
        depth += _function(frame) is not None
        frame = frame.f_back
    return depth


def take() -> dict[str, Walk]:
    """Start an embedded Postgres and take the walk of each request, by its name."""
    with tempfile.TemporaryDirectory(prefix="palimpsest-walks-") as folder:
        server = embedded.start(Path(folder))
        # What a process knows for two seconds must not end within a walk on a busy machine.
        known = [patch.object(module, "CACHE_SECONDS", math.inf) for module in (sealing, tenants)]
        try:
            with known[0], known[1]:
                return asyncio.run(_take(server.url))
        finally:
            server.stop()


async def _take(url: str) -> dict[str, Walk]:
    await migrate.upgrade(url)
    async with _client(url) as http:
        for _ in range(3):
            post, _ = await _walk(lambda: http.post("/v1/sessions/s/events", json={"events": [_MESSAGE]}))
            held, _ = await _walk(lambda: http.get("/v1/sessions/s/context"))
        return {POST: post, HELD: held, OPENING: await _opening(http)}


async def _opening(http: httpx.AsyncClient) -> Walk:
    """The walk of the last context that opened an epoch, in a session that goes over its trigger again and again."""
    (await http.put("/v1/sessions/t", json={"policy": {"trigger": {"tokens": 2_000}}})).raise_for_status()
    epoch, opening = 0, None
    for number in range(12):
        events = [_MESSAGE, *_read(f"call-{number}")]
        (await http.post("/v1/sessions/t/events", json={"events": events})).raise_for_status()
        walk, context = await _walk(lambda: http.get("/v1/sessions/t/context"))
        if context["epoch"] != epoch:
            epoch, opening = context["epoch"], walk
    assert opening is not None
    return opening


def _read(call: str) -> list[dict[str, Any]]:
    """The events of a file that is read: a call, and a result of about 600 tokens."""
    return [
        {"type": "tool.call", "call_id": call, "tool": "read", "arguments": {"path": f"{call}.txt"}},
        {"type": "tool.result", "call_id": call, "content": "a line of text and some values\n" * 80},
    ]


async def _walk(send: Callable[[], Awaitable[httpx.Response]]) -> tuple[Walk, Any]:
    recorder = _Recorder()
    token = _recorder.set(recorder)
    sys.setprofile(recorder)
    try:
        response = await send()
    finally:
        sys.setprofile(None)
        _recorder.reset(token)
    response.raise_for_status()
    return Walk(tuple(recorder.calls)), response.json()


@asynccontextmanager
async def _client(url: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an application in this process; each request carries the state of its lifespan, as a server's do."""
    settings = Settings(log_level="error")
    options.configure_logging(settings)
    app = create_app(settings, url)
    async with app.router.lifespan_context(app) as state:

        async def with_state(scope: Any, receive: Any, send: Any) -> None:
            await app({**scope, "state": dict(state or {})}, receive, send)

        transport = httpx.ASGITransport(app=with_state, client=("127.0.0.1", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            yield http


def figures(walks: dict[str, Walk]) -> dict[str, float]:
    """The figures of all walks, as `request: figure`."""
    return {f"{name}: {figure}": value for name, walk in walks.items() for figure, value in walk.figures().items()}


def page(walks: dict[str, Walk]) -> str:
    """The text of docs/walk.md: the figures, and for each request its functions, indented by depth."""
    rows = [walk.figures() for walk in walks.values()]
    table = [
        f"| | {' | '.join(walks)} |",
        f"|---|{'---:|' * len(walks)}",
        *(f"| {figure} | {' | '.join(str(row[figure]) for row in rows)} |" for figure in rows[0]),
    ]
    return "\n".join([_HEAD, *table, "", *(part for name, walk in walks.items() for part in _section(name, walk))])


_HEAD = f"""# The functions that a request passes

Written by `make tables`; `make check` fails when it is out of date. Each list names the functions in the order of their
first call, indented by depth, with the first sentence of their docstrings. Caches are warm. Functions of at most
{SMALL_LINES} lines and the connection pool are left out. The edge is HTTP and logs.
"""


def _section(name: str, walk: Walk) -> list[str]:
    shown = [(f, depth) for f, depth in walk.functions.items() if f.lines > SMALL_LINES]
    return [f"## {name}", "", "```text", *(_line(f, depth) for f, depth in shown), "```", ""]


def _line(function: Function, depth: int) -> str:
    place = f"{'  ' * (depth - 1)}{function.module.removesuffix('.py')}: {function.name.replace('.<locals>', '')}"
    sentence = _sentences(function.module).get(function.name, "")
    return f"{place}  {sentence}" if sentence else place


@cache
def _sentences(module: str) -> dict[str, str]:
    """The first sentence of the docstring of each function of a module, by its qualified name."""
    found = {}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                text = " ".join((ast.get_docstring(child) or "").split())
                found[prefix + child.name] = text.split(". ")[0].rstrip(".")
                visit(child, f"{prefix}{child.name}.<locals>.")
            else:
                visit(child, f"{prefix}{child.name}." if isinstance(child, ast.ClassDef) else prefix)

    visit(ast.parse((APP / module).read_text(encoding="utf-8")), "")
    return found
