"""A supervisor that forks processes and restarts them when they end.

The supervisor has imported everything, so that the forked processes start immediately and share that memory. A fork
copies only one thread and does not work with a running event loop, so the supervisor has no other thread and no loop.

Before that, the start waits for a database that is unreachable, while health probes are answered.
"""

import asyncio
import contextlib
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import structlog
import uvicorn

from app.core.errors import StoreUnavailable
from app.version import VERSION

PAUSE_SECONDS: Final = 0.2
"""The first pause before a restart; it doubles each time, up to PAUSE_SECONDS_MAX, until a process has run for
STEADY_SECONDS."""
PAUSE_SECONDS_MAX: Final = 30.0
STEADY_SECONDS: Final = 60.0
WAKE_BYTES: Final = 4096
_STOPS: Final = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True, slots=True)
class Role:
    """A process to run. `run` starts with the default signal handlers and returns after SIGTERM or SIGINT."""

    name: str
    run: Callable[[], None]


@dataclass(slots=True)
class _Slot:
    """A role's process: its pid while it runs, else None and the time at which it is due to start."""

    role: Role
    pid: int | None = None
    started: float = 0.0
    due: float = 0.0
    failures: int = 0


class Supervisor:
    """Runs one process for each role until SIGTERM or SIGINT.

    Processes stop in the order of their roles; roles with the same name stop together. A process that does not stop
    within `patience` seconds is killed. If the supervisor is killed, all processes end.

    `on_stop` is called when stopping begins, and `periodic` at intervals: it returns the seconds until the next call.
    """

    def __init__(
        self,
        roles: Sequence[Role],
        *,
        patience: float,
        on_stop: Callable[[], None] = lambda: None,
        periodic: Callable[[], float] | None = None,
    ) -> None:
        self._slots = [_Slot(role) for role in roles]
        self._patience = patience
        self._on_stop = on_stop
        self._periodic = periodic
        self._next_periodic = 0.0
        self._stopping = False
        self._stopping_name: str | None = None
        self._deadline = 0.0

    def run(self) -> None:
        """Run the processes, from the main thread; return when all have ended."""
        with self._pipes():
            for number in _STOPS:
                signal.signal(number, self._stop)
            signal.signal(signal.SIGCHLD, lambda *_: None)  # an ignored signal would not wake the supervisor
            while True:
                self._reap()
                if self._stopping and all(slot.pid is None for slot in self._slots):
                    return
                self._act()
                self._wait()

    @contextmanager
    def _pipes(self) -> Iterator[None]:
        """Open the pipe by which signals wake the supervisor, and the one that closes when the supervisor ends."""
        self._wake_read, self._wake_write = os.pipe()
        self._life_read, self._life_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(-1)
            for descriptor in (self._wake_read, self._wake_write, self._life_read, self._life_write):
                os.close(descriptor)

    def _stop(self, number: int, _frame: object) -> None:
        """Begin to stop. Further signals are passed on: after a second Ctrl-C the API does not wait for requests."""
        if not self._stopping:
            self._stopping = True
            self._on_stop()
        self._signal_next(number)

    def _reap(self) -> None:
        """Record the processes that have ended, and schedule their restart."""
        for slot in self._slots:
            if slot.pid is None:
                continue
            pid, status = os.waitpid(slot.pid, os.WNOHANG)
            if pid == 0:
                continue
            slot.pid = None
            if self._stopping:
                continue
            now = time.monotonic()
            slot.failures = 0 if now - slot.started >= STEADY_SECONDS else slot.failures + 1
            pause = min(PAUSE_SECONDS * 2 ** max(0, slot.failures - 1), PAUSE_SECONDS_MAX)
            slot.due = now + pause
            structlog.get_logger().warning(
                "a process has ended; restarting it",
                process=slot.role.name,
                pid=pid,
                ended=_describe_exit(status),
                after_seconds=pause,
            )

    def _act(self) -> None:
        """Start the processes that are due or, when stopping, stop the next ones."""
        now = time.monotonic()
        if self._periodic is not None and now >= self._next_periodic:
            self._next_periodic = self._periodic() + time.monotonic()
        for slot in self._slots:
            if slot.pid is None and now >= slot.due and not self._stopping:
                self._start(slot)
        if self._stopping:
            if self._stopping_name != self._next():
                self._signal_next(signal.SIGTERM)
            elif now >= self._deadline:
                self._stopping_name = None  # so that the kill gets a deadline of its own
                self._signal_next(signal.SIGKILL)

    def _next(self) -> str | None:
        """Return the name of the processes to stop next."""
        return next((slot.role.name for slot in self._slots if slot.pid is not None), None)

    def _signal_next(self, number: int) -> None:
        name = self._next()
        if name != self._stopping_name:
            self._stopping_name, self._deadline = name, time.monotonic() + self._patience
        for slot in self._slots:
            if slot.pid is not None and slot.role.name == name:
                with suppress(ProcessLookupError):
                    os.kill(slot.pid, number)

    def _wait(self) -> None:
        """Wait for a signal or the next due time."""
        times = [slot.due for slot in self._slots if slot.pid is None and not self._stopping]
        if self._periodic is not None:
            times.append(self._next_periodic)
        if self._stopping:
            times.append(self._deadline)
        seconds = max(0.0, min(times) - time.monotonic()) if times else None
        if select.select([self._wake_read], [], [], seconds)[0]:
            os.read(self._wake_read, WAKE_BYTES)

    def _start(self, slot: _Slot) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        # The supervisor's handlers must not run in the new process, nor here before its pid is known.
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
        pid = os.fork()
        if pid == 0:
            self._run_child(slot.role)
        slot.pid, slot.started = pid, time.monotonic()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)

    def _run_child(self, role: Role) -> NoReturn:
        """Run a role in the forked process and exit without running the cleanup of the supervisor's callers."""
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in (*_STOPS, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            for descriptor in (self._wake_read, self._wake_write, self._life_write):
                os.close(descriptor)
            os.setpgid(0, 0)  # Ctrl-C must reach only the supervisor, which stops the others in their order
            threading.Thread(
                target=_exit_with_supervisor, args=(self._life_read,), name="supervisor-watch", daemon=True
            ).start()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
            role.run()
            status = 0
        except BaseException:  # nothing may propagate to the supervisor's callers
            structlog.get_logger().exception("a process has failed", process=role.name)
        finally:
            with suppress(OSError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)


def _exit_with_supervisor(life_read: int) -> None:
    """Exit when the supervisor ends: nothing is ever written to the pipe, and only the supervisor holds it open."""
    os.read(life_read, 1)
    os._exit(1)


def _describe_exit(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"status {code}" if code >= 0 else f"signal {-code} ({signal.strsignal(-code)})"


CONNECT_PAUSE_SECONDS: Final = 0.5
"""The first pause before another attempt; it doubles each time, up to CONNECT_PAUSE_SECONDS_MAX."""
CONNECT_PAUSE_SECONDS_MAX: Final = 5.0
REMINDER_SECONDS: Final = 60.0
"""Time between two log lines about the wait."""
STATUS: Final = "waiting for the database"
_HEALTHY: Final = {"status": "ok", "service": "palimpsest", "version": VERSION}


class DatabaseUnreachable(Exception):
    """The database cannot be reached now, and may be later."""


async def wait_for_database(
    prepare: Callable[[], Awaitable[None]], listener: socket.socket | None, tell: Callable[[str], None]
) -> None:
    """Call `prepare` until it does not raise DatabaseUnreachable, and let any other error pass.

    During the wait, requests on the listener get 503 (`/healthz` 200), and SIGTERM and SIGINT raise SystemExit(0).
    `tell` prints the status, once.
    """
    log = structlog.get_logger()
    clock = asyncio.get_running_loop().time
    pause, next_reminder = CONNECT_PAUSE_SECONDS, 0.0
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
            pause = min(2 * pause, CONNECT_PAUSE_SECONDS_MAX)
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
