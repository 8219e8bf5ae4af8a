"""Waiting at startup for a database that is unreachable, while answering health probes."""

import asyncio
import contextlib
import json
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Final

import structlog
import uvicorn

from app.core.errors import StoreUnavailable
from app.version import VERSION

PAUSE_SECONDS: Final = 0.5
PAUSE_SECONDS_MAX: Final = 5.0
"""The pause before the next attempt; it doubles each time, up to PAUSE_SECONDS_MAX."""
REMINDER_SECONDS: Final = 60.0
"""Time between two log lines about the wait."""
STATUS: Final = "waiting for the database"
_HEALTHY: Final = {"status": "ok", "service": "palimpsest", "version": VERSION}


class DatabaseUnreachable(Exception):
    """The database cannot be reached now, and may be later."""


async def wait_for(
    prepare: Callable[[], Awaitable[None]], listener: socket.socket | None, tell: Callable[[str], None]
) -> None:
    """Call `prepare` until it does not raise DatabaseUnreachable, and let any other error pass.

    During the wait, requests on the listener get 503 (`/healthz` 200), and SIGTERM and SIGINT raise SystemExit(0).
    `tell` prints the status, once.
    """
    log = structlog.get_logger()
    clock = asyncio.get_running_loop().time
    pause, next_reminder = PAUSE_SECONDS, 0.0
    async with contextlib.AsyncExitStack() as stack:
        while True:
            try:
                await prepare()
                break
            except DatabaseUnreachable as away:
                first = not next_reminder
                if clock() >= next_reminder:
                    next_reminder = clock() + REMINDER_SECONDS
                    log.warning("the database is unreachable; retrying", error=str(away))
                if first:
                    tell(STATUS)
                if first and listener is not None:
                    stack.enter_context(_ended_by_signals())
                    await stack.enter_async_context(_answer_probes(listener))
            await asyncio.sleep(pause)
            pause = min(2 * pause, PAUSE_SECONDS_MAX)
    if next_reminder:
        log.warning("the database is reachable; starting")


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Raise SystemExit(0) from the block after SIGTERM or SIGINT.

    A signal handler must not raise it itself: during a probe, uvicorn would log and swallow it. So the handler of the
    event loop cancels the waiting task.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    received: list[int] = []

    def end(number: int) -> None:
        received.append(number)
        if task is not None:
            task.cancel()

    for number in handlers:
        loop.add_signal_handler(number, end, number)
    try:
        yield
    except asyncio.CancelledError:
        if received:
            raise SystemExit(0) from None
        raise
    finally:
        for number, handler in handlers.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


@contextlib.asynccontextmanager
async def _answer_probes(listener: socket.socket) -> AsyncIterator[None]:
    """Answer requests inside the block; the listener stays open afterwards."""
    config = uvicorn.Config(_answer, lifespan="off", ws="none", log_config=None, access_log=False, proxy_headers=False)
    server = _ProbeServer(config)
    serving = asyncio.create_task(server.serve(sockets=[listener.dup()]))
    try:
        yield
    finally:
        server.should_exit = True
        await serving


class _ProbeServer(uvicorn.Server):
    """uvicorn's server that leaves signals to the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing."""
        yield


def _away() -> dict[str, object]:
    from app.http.errors import TABLE  # and with it FastAPI, which no other command needs

    return TABLE[StoreUnavailable].body("the server is starting and waiting for its database")


async def _answer(scope: Any, receive: Any, send: Any) -> None:
    """Answer `/healthz` with 200 and everything else with 503."""
    alive = scope["path"] == "/healthz"
    body = json.dumps(_HEALTHY if alive else _away()).encode()
    kind = b"application/json" if alive else b"application/problem+json"
    headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body)), (b"connection", b"close")]
    headers += [] if alive else [(b"retry-after", b"1")]
    await send({"type": "http.response.start", "status": 200 if alive else 503, "headers": headers})
    await send({"type": "http.response.body", "body": body})
