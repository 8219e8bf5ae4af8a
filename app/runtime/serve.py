"""Run the roles of the server (API, worker) as processes that listen, work and stop cleanly.

A role's modules are imported only when it runs: the API's routes and models, the queue and the migrations take longer
to import than most commands take to run.
"""

import asyncio
import contextlib
import ctypes
import gc
import ipaddress
import os
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import uvicorn

from app.core.errors import StoreUnavailable
from app.runtime.settings import Settings
from app.runtime.supervise import DatabaseUnreachable, Role, Supervisor, wait_for_database
from app.runtime.wing import find_placement, installed

if TYPE_CHECKING:
    from app.http.protocol import WireLimits
    from app.store.embedded import EmbeddedPostgres

GRACE_SECONDS: Final = 30
KEEP_ALIVE_SECONDS: Final = 75
"""Longer than clients and load balancers keep an idle connection (5 to 60 seconds by default). If the server closed
first, the client's next request could already be on its way and would fail."""
PATIENCE_SECONDS: Final = GRACE_SECONDS + 10.0
"""The time after which a process that ignores a signal to stop is killed."""
GC_THRESHOLDS: Final = (10_000, 5, 400)
"""Thresholds for `gc.set_threshold`. A full garbage collection stops every request, for a quarter of a second if views
of long logs are cached; so it is made rare, and does not cover what was imported."""
M_ARENA_MAX: Final = -8
"""The parameter of glibc's `mallopt` that limits the number of heaps."""
WORKER_NICENESS: Final = 10
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class CannotServe(Exception):
    """The process cannot start; the message is for the person who started it."""


def exit_on_signals() -> None:
    """Let signals end the process with status 0, running every `finally`, until the server or worker handles them."""
    for number in _SIGNALS:
        signal.signal(number, lambda *_: sys.exit(0))


def ignore_signals() -> None:
    """Ignore signals while the process ends, so that a repeated one does not leave Postgres running."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def listen(settings: Settings) -> socket.socket:
    """Open the listening socket. Raises CannotServe if the address is in use or not one of this machine."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
        listener.listen()  # binding alone does not keep another server off the port
    except OSError as error:
        listener.close()
        raise CannotServe(f"cannot listen on {settings.host}:{settings.port}: {error.strerror}") from None
    return listener


async def make_database_ready(
    settings: Settings, database_url: str, *, upgrade: bool, listener: socket.socket | None = None
) -> None:
    """Prepare the database, and check that it may be served on the `listener`.

    Waits for a database that the settings name while it is unreachable; the listener answers with 503 meanwhile. Raises
    CannotServe, or DatabaseUnreachable for the embedded Postgres.
    """

    async def ready() -> None:
        await prepare(database_url, upgrade=upgrade)
        if listener is not None:
            await require_key_or_loopback(settings, database_url)

    if settings.database_url is None:
        await ready()
    else:
        await wait_for_database(ready, listener, print_status)


async def prepare(database_url: str, *, upgrade: bool) -> None:
    """Migrate the database, or check that it is migrated, and check that it isolates tenants.

    Raises CannotServe, or DatabaseUnreachable if it cannot be reached.
    """
    from app.store import migrate

    with _convert_errors():
        await (migrate.upgrade(database_url) if upgrade else migrate.check(database_url))
        await migrate.check_isolation(database_url)


async def downgrade(database_url: str, schema: str) -> None:
    """Downgrade the database to an earlier schema. Raises CannotServe or DatabaseUnreachable."""
    from app.store import migrate

    with _convert_errors():
        await migrate.downgrade(database_url, schema)


@contextlib.contextmanager
def _convert_errors() -> Iterator[None]:
    """Convert errors of migrating or using the database to CannotServe or DatabaseUnreachable."""
    import asyncpg

    from app.store import migrate
    from app.store.driver import UNREACHABLE

    refusals = (
        migrate.DatabaseTooNew,
        migrate.DatabaseBehind,
        migrate.PostgresTooOld,
        migrate.UnknownRevision,
        migrate.TenantIsolationError,
    )
    try:
        yield
    except refusals as error:
        raise CannotServe(str(error)) from None
    except (*UNREACHABLE, asyncpg.PostgresError, asyncpg.InterfaceError, migrate.MigrationFailed, ValueError) as error:
        lines = str(error).splitlines() or [type(error).__name__]
        kind = DatabaseUnreachable if _is_temporary(error) else CannotServe
        raise kind(f"the database cannot be used: {lines[0]}") from None


def _is_temporary(error: BaseException | None) -> bool:
    """Return whether an error, or one of its causes, means that the database is unreachable for now."""
    from app.store.driver import UNREACHABLE

    while error is not None:
        if isinstance(error, ssl.SSLError):  # an OSError too, but retrying does not fix a certificate
            return False
        if isinstance(error, UNREACHABLE):
            return True
        error = error.__cause__
    return False


async def require_key_or_loopback(settings: Settings, database_url: str) -> None:
    """Raise CannotServe if other machines could reach data without a key, DatabaseUnreachable if that is unknown."""
    from app.store.engine import Database
    from app.tenants import Tenants

    if _is_loopback(settings.host):
        return
    database = Database(database_url, pool_size=1, find_placement=find_placement)
    try:
        if not await Tenants(database, settings.api_key).needs_key():
            raise CannotServe(
                f"refusing to listen on {settings.host} without a key: make one with `palimpsest keys create`,"
                " or set PALIMPSEST_API_KEY"
            )
    except StoreUnavailable as error:
        raise DatabaseUnreachable(error.detail) from None
    finally:
        await database.close()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@contextlib.contextmanager
def preload(settings: Settings, *, api: bool, worker: bool) -> Iterator[None]:
    """Import the modules of the roles, load the vocabularies, and exclude all of that from garbage collection.

    Processes that the block forks share that memory: a collection would write to every object, and so copy it.
    """
    with contextlib.ExitStack() as wings:
        for wing in installed():
            wings.enter_context(wing.start(settings))
        _share_one_heap()
        import uvloop  # noqa: F401 - imported for the roles

        from app import tokenizers

        if worker:
            import app.worker  # noqa: F401 - imported for the roles
        if api:
            from app import main  # noqa: F401 - imported for the roles
        for wing in installed():  # called for the imports
            if worker:
                wing.jobs(settings)
            if api:
                list(wing.routes(settings))
        tokenizers.load(settings.tiktoken_cache_dir)
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        yield


def _share_one_heap() -> None:
    """Make all threads allocate from one heap.

    glibc uses up to eight heaps per core, each of which keeps its freed memory. Only one thread runs Python at a time,
    so sharing a heap costs no waiting.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library, which has no such limit
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)


def run_api(settings: Settings, database_url: str, listener: socket.socket, *, quiet: bool = False) -> None:
    """Run an API in this process until SIGTERM or SIGINT; with `quiet`, without printing its status."""
    _run(settings, _serve(settings, database_url, listener, quiet=quiet))


def run_worker(settings: Settings, database_url: str, *, quiet: bool = False) -> None:
    """Run a worker in this process until SIGTERM or SIGINT, at a lower priority; `quiet`: without printing a status."""
    os.nice(WORKER_NICENESS)
    _run(settings, _work(settings, database_url, quiet=quiet))


def supervise(
    settings: Settings,
    database_url: str,
    listener: socket.socket,
    *,
    worker: bool,
    postgres: "EmbeddedPostgres | None" = None,
) -> None:
    """Run the configured number of API processes, and optionally a worker, until SIGTERM or SIGINT.

    An embedded Postgres is watched. The APIs stop before the worker, so that requests waiting for a summary still get
    it.
    """

    def role(run: Callable[[], None]) -> Callable[[], None]:
        def forked() -> None:
            if postgres is not None:
                postgres.disown()
            run()

        return forked

    def work() -> None:
        listener.close()
        run_worker(settings, database_url, quiet=True)

    roles = [
        Role("api", role(partial(run_api, settings, database_url, listener, quiet=number > 0)))
        for number in range(settings.processes)
    ]
    if worker:
        roles.append(Role("worker", role(work)))
    Supervisor(
        roles,
        patience=PATIENCE_SECONDS,
        on_stop=listener.close,  # new connections are refused immediately, not when all processes have ended
        periodic=None if postgres is None else postgres.watch().check,
    ).run()


def _run(settings: Settings, work: Coroutine[Any, Any, None]) -> None:
    import uvloop

    with contextlib.ExitStack() as wings:
        for wing in installed():
            wings.enter_context(wing.process(settings))
        wings.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop)).run(work)


async def _serve(settings: Settings, database_url: str, listener: socket.socket, *, quiet: bool) -> None:
    """Serve until SIGTERM or SIGINT; requests in flight then have GRACE_SECONDS to finish."""
    from app.http.protocol import protocol_class
    from app.main import create_app

    app = create_app(settings, database_url)
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http=protocol_class(wire_limits(settings)),
        ws="none",
        log_config=None,
        access_log=False,
        proxy_headers=False,  # nothing uses the client's address
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    await ApiServer(config, app.state.stopping, quiet=quiet).serve(sockets=[listener])


def wire_limits(settings: Settings) -> "WireLimits":
    """Return the limits on a request's size and on the time it takes to arrive."""
    from app.http.protocol import WireLimits

    return WireLimits(
        head_bytes=settings.head_bytes_max,
        head_fields=settings.head_fields_max,
        head_seconds=settings.head_seconds,
        body_seconds=settings.body_seconds,
        unread_bytes=settings.body_unread_bytes_max,
    )


async def _work(settings: Settings, database_url: str, *, quiet: bool) -> None:
    from app.runtime import wiring
    from app.worker import run

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, stop.set)
    if not quiet:
        print_status("working")
    await run(database_url, stop, wiring.worker_work(settings))


class ApiServer(uvicorn.Server):
    """A uvicorn server that prints when it listens and stops, and exits with status 0 after a signal."""

    def __init__(self, config: uvicorn.Config, stopping: asyncio.Event, *, quiet: bool) -> None:
        super().__init__(config)
        self._stopping = stopping
        self._quiet = quiet

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals, but do not raise them again after the shutdown as uvicorn does."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to stop: refuse new requests and let running ones finish. A second Ctrl-C does not wait for them."""
        super().handle_exit(sig, frame)
        self._stopping.set()
        if not self._quiet:
            print_status("stopping")

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then print the address."""
        await super().startup(sockets)
        if self.started and sockets and not self._quiet:
            host, port = sockets[0].getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            print_status(f"serving on http://{shown}:{port}")


def print_status(what: str) -> None:
    """Print a status line for the person who started the process."""
    print(f"palimpsest: {what}", flush=True)  # noqa: T201 - a command's own output
