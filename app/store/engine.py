"""The connection pool. Statements are SQL text handed to the driver as they are.

One statement through `fetch`, `fetchrow` or `execute` is one round trip in a transaction of its own. SQLAlchemy knows
the tables (`tables.py`) for migrations; its pool and its statement layer would add a third of a millisecond to every
call here (docs/decisions/0003).
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final, cast

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from app.core.errors import StoreUnavailable
from app.store.dsn import for_asyncpg

ACQUIRE_SECONDS: Final = 10.0
COMMAND_SECONDS: Final = 60.0
LOCK_MS: Final = 10_000
"""How long a statement waits for a row that somebody else has locked."""

# Every statement here is a short indexed one: compiling it to machine code, or planning it anew each time, would take
# longer than running it.
SERVER_SETTINGS: Final = {
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "lock_timeout": str(LOCK_MS),
    "application_name": "palimpsest",
}

_UNREACHABLE: Final = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.InternalClientError,  # what using a connection gives whose end has only half arrived
)
_TOO_LONG: Final = (asyncpg.LockNotAvailableError, asyncpg.QueryCanceledError)
_FULL: Final = (asyncpg.DiskFullError, asyncpg.OutOfMemoryError)

TRIES: Final = 3
"""How often a statement that is a transaction of its own is tried when it is the one that must give way in a deadlock.

Here all rows are locked in one order, and each by one way. Processes of an earlier version that still run during an
upgrade, and an operator's own statements, may do otherwise."""

Driver = asyncpg.Connection | PoolConnectionProxy


async def _json_as_text(driver: Driver) -> None:
    """JSON columns come and go as text: what is stored is kept byte for byte, and parsed only where it is needed."""
    for name in ("json", "jsonb"):
        await driver.set_type_codec(name, schema="pg_catalog", encoder=str, decoder=str, format="text")


async def _keep(_: Driver) -> None:
    """No session state is ever set outside a transaction, so nothing needs a round trip to reset it."""


class Connection:
    """A borrowed driver connection inside one transaction."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def fetch(self, sql: str, *args: object) -> Sequence[asyncpg.Record]:
        """All rows."""
        return cast(Sequence[asyncpg.Record], await self._driver.fetch(sql, *args))

    async def fetchrow(self, sql: str, *args: object) -> asyncpg.Record | None:
        """The first row, if any."""
        return await self._driver.fetchrow(sql, *args)

    async def execute(self, sql: str, *args: object) -> str:
        """The command's tag."""
        return str(await self._driver.execute(sql, *args))


class _GaveWay(StoreUnavailable):
    """A deadlock was broken at the cost of this transaction."""


class Database:
    """The pool; raises StoreUnavailable for whatever a retry may cure, asyncpg's own errors otherwise.

    Connections are made when they are first needed, so a database that is down does not keep a server from starting.
    """

    def __init__(self, url: str, *, pool_size: int) -> None:
        self._dsn = for_asyncpg(url)
        self._pool = asyncpg.create_pool(
            self._dsn,
            min_size=0,
            max_size=pool_size,
            init=_json_as_text,
            reset=_keep,
            command_timeout=COMMAND_SECONDS,
            server_settings=SERVER_SETTINGS,
        )

    async def fetch(self, sql: str, *args: object) -> Sequence[asyncpg.Record]:
        """All rows of one statement."""
        return cast(Sequence[asyncpg.Record], await self._alone(lambda driver: driver.fetch(sql, *args)))

    async def fetchrow(self, sql: str, *args: object) -> asyncpg.Record | None:
        """The first row of one statement."""
        return cast(asyncpg.Record | None, await self._alone(lambda driver: driver.fetchrow(sql, *args)))

    async def execute(self, sql: str, *args: object) -> str:
        """The tag of one statement."""
        return str(await self._alone(lambda driver: driver.execute(sql, *args)))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """Several statements, all or nothing."""
        async with self._driver() as driver, driver.transaction():
            yield Connection(driver)

    async def apart(self, name: str) -> asyncpg.Connection:
        """A new connection outside the pool, for its owner to close. Raises StoreUnavailable."""
        try:
            return await asyncpg.connect(
                self._dsn, timeout=ACQUIRE_SECONDS, server_settings={**SERVER_SETTINGS, "application_name": name}
            )
        except _UNREACHABLE as error:
            raise StoreUnavailable("the database cannot be reached") from error

    async def close(self) -> None:
        """Close every connection."""
        await self._pool  # a pool that was never used cannot be closed otherwise
        await self._pool.close()

    async def _alone(self, statement: Callable[[Driver], Awaitable[object]]) -> object:
        """Run one statement in a transaction of its own, again if it had to give way: then it has changed nothing."""
        for _ in range(TRIES - 1):
            with suppress(_GaveWay):
                async with self._driver() as driver:
                    return await statement(driver)
        async with self._driver() as driver:
            return await statement(driver)

    @asynccontextmanager
    async def _driver(self) -> AsyncIterator[Driver]:
        try:
            await self._pool  # does nothing but the first time
            driver = await self._pool.acquire(timeout=ACQUIRE_SECONDS)
            try:
                yield driver
            except _UNREACHABLE:
                with suppress(asyncpg.InterfaceError):  # the pool has noticed by itself
                    driver.terminate()  # its end may not have been noticed yet: it must not be lent again
                raise
            finally:
                await self._pool.release(driver)
        except asyncpg.DeadlockDetectedError as error:
            raise _GaveWay("the database let another transaction go first") from error
        except _TOO_LONG as error:
            raise StoreUnavailable(f"the database has kept this waiting for too long: {error}") from error
        except asyncpg.ReadOnlySQLTransactionError as error:
            raise StoreUnavailable(f"the database takes no writes now: {error}") from error
        except _FULL as error:
            raise StoreUnavailable(f"the database cannot write: {error}") from error
        except _UNREACHABLE as error:
            raise StoreUnavailable("the database cannot be reached") from error
        except asyncpg.InterfaceError as error:
            if "clos" not in str(error):  # closed or closing: all others are mistakes of our own
                raise
            raise StoreUnavailable("the connection to the database was lost") from error
