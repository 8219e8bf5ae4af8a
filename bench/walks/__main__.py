"""`python -m bench.walks`: how many functions and modules of `app` a request passes, and how often it switches between
modules.

It is what a reader must follow to know what a request does. Counted are named functions (no lambdas, comprehensions or
generated methods) and the changes of module from one call to the next, in the request's own thread, once caches are
warm: an append of one message, and a context of a view that is held in memory.
"""

import argparse
import asyncio
import itertools
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType
from typing import Any

import httpx

from app.main import create_app
from app.settings import Settings
from app.store import embedded, migrate

APP = str(Path(__file__).parent.parent.parent / "app")


class Walk:
    """The functions of `app` that were called, in order."""

    def __init__(self) -> None:
        self.called: list[tuple[str, str]] = []
        self._seen: set[FrameType] = set()

    def see(self, frame: FrameType, event: str, _value: Any) -> None:
        """A profile function."""
        code = frame.f_code
        if event != "call" or frame in self._seen:  # a coroutine that goes on is no new call
            return
        if code.co_filename.startswith(APP) and not code.co_name.startswith("<"):
            self._seen.add(frame)
            self.called.append((code.co_filename.removeprefix(APP)[1:], code.co_qualname))

    def __str__(self) -> str:
        modules = [module for module, _ in self.called]
        switches = sum(a != b for a, b in itertools.pairwise(modules))
        return f"{len(set(self.called))} functions, {len(set(modules))} modules, {switches} switches"


async def walked(ask: Callable[[], Awaitable[httpx.Response]]) -> Walk:
    """What one request passes."""
    walk = Walk()
    sys.setprofile(walk.see)
    try:
        answer = await ask()
    finally:
        sys.setprofile(None)
    answer.raise_for_status()
    return walk


async def main(url: str, *, listed: bool) -> None:
    """Print both walks."""
    app = create_app(Settings(log_level="error"), url)
    transport = httpx.ASGITransport(app=app, client=("127.0.0.1", 1))
    async with (
        app.router.lifespan_context(app) as state,
        httpx.AsyncClient(transport=WithState(transport, state), base_url="http://127.0.0.1") as http,
    ):
        said = {"events": [{"type": "user.message", "content": "What is in the file?"}]}
        for _ in range(3):
            post = await walked(lambda: http.post("/v1/sessions/s/events", json=said))
            get = await walked(lambda: http.get("/v1/sessions/s/context"))
    for name, walk in (("POST events", post), ("GET context, held in memory", get)):
        print(f"{name}: {walk}")
        if listed:
            print("\n".join(f"    {module} {function}" for module, function in walk.called))


class WithState(httpx.AsyncBaseTransport):
    """A transport whose requests carry the state of the application's lifespan, as a server's do."""

    def __init__(self, inner: httpx.ASGITransport, state: Any) -> None:
        self._inner, app = inner, inner.app

        async def stateful(scope: Any, receive: Any, send: Any) -> None:
            await app({**scope, "state": dict(state or {})}, receive, send)

        inner.app = stateful

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Pass it on."""
        return await self._inner.handle_async_request(request)


def run() -> None:
    """Start a Postgres of its own."""
    parser = argparse.ArgumentParser(prog="python -m bench.walks", description=__doc__)
    parser.add_argument("--list", action="store_true", help="name every call")
    listed = parser.parse_args().list
    with tempfile.TemporaryDirectory(prefix="palimpsest-bench-") as folder:
        server = embedded.start(Path(folder))
        try:
            asyncio.run(_migrated(server.url, listed=listed))
        finally:
            server.stop()


async def _migrated(url: str, *, listed: bool) -> None:
    await migrate.upgrade(url)
    await main(url, listed=listed)


if __name__ == "__main__":
    run()
