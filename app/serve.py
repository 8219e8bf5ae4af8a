"""Running the roles of the server as a process: listen, work, stop cleanly."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Iterator
from typing import Final

import asyncpg
import uvicorn
from sqlalchemy.exc import SQLAlchemyError

from app.core.errors import StoreUnavailable
from app.main import create_app
from app.services.tenants import Tenants
from app.settings import Settings
from app.store import migrate
from app.store.engine import Database
from app.worker.run import run as run_worker

GRACE_SECONDS: Final = 30
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})


class CannotServe(Exception):
    """The process cannot start; the message is for the person who started it."""


def listen(settings: Settings) -> socket.socket:
    """The listening socket. Raises CannotServe when the address is taken or not ours."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        raise CannotServe(f"cannot listen on {settings.host}:{settings.port}: {error.strerror}") from None
    listener.set_inheritable(True)
    return listener


async def prepare(database_url: str, *, upgrade: bool) -> None:
    """Migrate the database, or check that it is migrated. Raises CannotServe."""
    try:
        await (migrate.upgrade(database_url) if upgrade else migrate.check(database_url))
    except (migrate.DatabaseTooNew, migrate.DatabaseBehind, migrate.PostgresTooOld) as error:
        raise CannotServe(str(error)) from None
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, SQLAlchemyError, ValueError) as error:
        reason = str(getattr(error, "orig", None) or error).splitlines()[0]
        raise CannotServe(f"the database cannot be reached: {reason}") from None


async def guard(settings: Settings, database_url: str) -> None:
    """Raise CannotServe where anyone could reach data that no key protects."""
    if settings.host in _LOOPBACK:
        return
    database = Database(database_url, pool_size=1)
    try:
        if not await Tenants(database, settings.api_key).needs_key():
            raise CannotServe(
                f"refusing to listen on {settings.host} without a key: make one with `palimpsest keys create`,"
                " or set PALIMPSEST_API_KEY"
            )
    except StoreUnavailable as error:
        raise CannotServe(error.detail) from None
    finally:
        await database.close()


async def serve(settings: Settings, database_url: str, listener: socket.socket, *, worker: bool) -> None:
    """Serve until SIGTERM or SIGINT; requests in flight finish, for at most GRACE_SECONDS."""
    await guard(settings, database_url)
    config = uvicorn.Config(
        create_app(settings, database_url),
        loop="uvloop",
        http="httptools",
        ws="none",
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    stop = asyncio.Event()
    working = asyncio.create_task(run_worker(database_url, stop)) if worker else None
    try:
        await Server(config).serve(sockets=[listener])
    finally:
        stop.set()
        if working is not None:
            await working


async def work(database_url: str) -> None:
    """Work until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    print("palimpsest: working", flush=True)  # noqa: T201 - for whoever started the process
    await run_worker(database_url, stop)


class Server(uvicorn.Server):
    """uvicorn's server, but it says when it listens, and a signal that asked it to stop does not also kill it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn raises captured signals again after its shutdown; ours end in an exit status of 0."""
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGTERM, signal.SIGINT)
        for number in numbers:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then tell whoever started the process."""
        await super().startup(sockets)
        if self.started and sockets:
            host, port = sockets[0].getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            print(f"palimpsest: serving on http://{shown}:{port}", flush=True)  # noqa: T201
