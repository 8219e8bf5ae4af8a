"""The wait for a database that is away when a process starts, and what probes are answered meanwhile."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Final

import structlog
import uvicorn

from app.version import VERSION

PAUSE_SECONDS: Final = 0.5
PAUSE_SECONDS_MAX: Final = 5.0
"""The pause before the database is tried again: it doubles each time."""
REMINDER_SECONDS: Final = 60.0
"""Time between two lines in the log about the wait."""
STATUS: Final = "waiting for the database"
_HEALTHY: Final = {"status": "ok", "service": "palimpsest", "version": VERSION}
_AWAY: Final = {
    "type": "/problems/store-unavailable",
    "title": "Database unavailable",
    "status": 503,
    "detail": "the server is starting, and waits for its database",
}


class DatabaseAway(Exception):
    """The database cannot be reached now, and may be later."""


async def wait_for(
    prepare: Callable[[], Awaitable[None]], listener: socket.socket | None, tell: Callable[[str], None]
) -> None:
    """Call `prepare` until it does not raise DatabaseAway; whoever asks the listener meanwhile is told of the wait.

    `tell` shows the person who started the process that it waits. Raises whatever else `prepare` raises.
    """
    log = structlog.get_logger()
    clock = asyncio.get_running_loop().time
    pause, next_reminder = PAUSE_SECONDS, 0.0
    async with contextlib.AsyncExitStack() as stack:
        while True:
            try:
                await prepare()
                break
            except DatabaseAway as away:
                first = not next_reminder
                if clock() >= next_reminder:
                    next_reminder = clock() + REMINDER_SECONDS
                    log.warning("the database is away; it is tried until it answers", error=str(away))
                if first:
                    tell(STATUS)
                if first and listener is not None:
                    await stack.enter_async_context(_answering(listener))
            await asyncio.sleep(pause)
            pause = min(2 * pause, PAUSE_SECONDS_MAX)
    if next_reminder:
        log.warning("the database answers; starting")


@contextlib.asynccontextmanager
async def _answering(listener: socket.socket) -> AsyncIterator[None]:
    """Answer requests while the block lasts; the listener stays open for whoever serves it then."""
    config = uvicorn.Config(_answer, lifespan="off", ws="none", log_config=None, access_log=False, proxy_headers=False)
    server = _Probed(config)
    serving = asyncio.create_task(server.serve(sockets=[listener.dup()]))
    try:
        yield
    finally:
        server.should_exit = True
        await serving


class _Probed(uvicorn.Server):
    """uvicorn's server that leaves signals to the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


async def _answer(scope: Any, receive: Any, send: Any) -> None:
    """Say that the process is alive, and that nothing else can be asked of it yet."""
    alive = scope["path"] == "/healthz"
    body = json.dumps(_HEALTHY if alive else _AWAY).encode()
    kind = b"application/json" if alive else b"application/problem+json"
    headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body)), (b"connection", b"close")]
    headers += [] if alive else [(b"retry-after", b"1")]
    await send({"type": "http.response.start", "status": 200 if alive else 503, "headers": headers})
    await send({"type": "http.response.body", "body": body})
