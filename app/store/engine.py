"""The connection pool. SQLAlchemy's pool holds asyncpg connections; hot statements go to the driver as they are.

One statement through `fetch`, `fetchrow` or `execute` is one round trip in a transaction of its own.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import asyncpg
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from app.core.errors import StoreUnavailable

_UNREACHABLE = (
    OSError,
    OperationalError,
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.InterfaceError,
)
_DISK = (asyncpg.DiskFullError, asyncpg.OutOfMemoryError)


def _json_as_text(connection: Any, _record: object) -> None:
    """JSON columns come and go as text: what is stored is kept byte for byte, and parsed only where it is needed."""

    async def set_codecs(driver: asyncpg.Connection) -> None:
        for name in ("json", "jsonb"):
            await driver.set_type_codec(name, schema="pg_catalog", encoder=str, decoder=str, format="text")

    connection.run_async(set_codecs)


class Connection:
    """A borrowed driver connection inside one transaction."""

    def __init__(self, driver: asyncpg.Connection) -> None:
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


class Database:
    """The pool; raises StoreUnavailable for whatever a retry may cure, asyncpg's own errors otherwise."""

    def __init__(self, url: str, *, pool_size: int) -> None:
        self.engine: AsyncEngine = create_async_engine(
            url,
            pool_size=pool_size,
            max_overflow=0,
            pool_timeout=10,
            pool_recycle=3600,
            # Every statement here is a short indexed one: compiling it to machine code or planning it anew each time
            # would take longer than running it.
            connect_args={"server_settings": {"jit": "off", "plan_cache_mode": "force_generic_plan"}},
        )
        event.listen(self.engine.sync_engine, "connect", _json_as_text)

    async def fetch(self, sql: str, *args: object) -> Sequence[asyncpg.Record]:
        """All rows of one statement."""
        async with self._driver() as driver:
            return cast(Sequence[asyncpg.Record], await driver.fetch(sql, *args))

    async def fetchrow(self, sql: str, *args: object) -> asyncpg.Record | None:
        """The first row of one statement."""
        async with self._driver() as driver:
            return await driver.fetchrow(sql, *args)

    async def execute(self, sql: str, *args: object) -> str:
        """The tag of one statement."""
        async with self._driver() as driver:
            return str(await driver.execute(sql, *args))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """Several statements, all or nothing."""
        async with self._driver() as driver, driver.transaction():
            yield Connection(driver)

    async def close(self) -> None:
        """Close every connection."""
        await self.engine.dispose()

    @asynccontextmanager
    async def _driver(self) -> AsyncIterator[asyncpg.Connection]:
        try:
            async with self.engine.connect() as connection:
                raw = await connection.get_raw_connection()
                driver = raw.driver_connection
                try:
                    yield cast(asyncpg.Connection, driver)
                except _UNREACHABLE:
                    await connection.invalidate()
                    raise
        except _DISK as error:
            raise StoreUnavailable(f"the database cannot write: {error}") from error
        except DBAPIError as error:
            if error.connection_invalidated or isinstance(error, OperationalError):
                raise StoreUnavailable("the database cannot be reached") from error
            raise
        except _UNREACHABLE as error:
            raise StoreUnavailable("the database cannot be reached") from error
