"""The connection pool. Statements are SQL text with named parameters (`:seq`), which the driver is given by number.

One statement through `fetch`, `fetchrow` or `execute` is one round trip in a transaction of its own. SQLAlchemy
describes the tables for migrations (`migrations/tables.py`); its pool and its statement layer would add a third of a
millisecond to every call here (docs/decisions/0003).

Whose rows a statement may touch is said here and nowhere else: the server holds row-level security against the role
that connections act as, and a connection is set to the tenant that its borrower acts for (docs/decisions/0020).
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, Final, NamedTuple, cast
from uuid import UUID

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from app import tracing
from app.core.errors import StoreUnavailable
from app.store.connecting import UNREACHABLE, connect

ACQUIRE_SECONDS: Final = 10.0
COMMAND_SECONDS: Final = 60.0
LOCK_MS: Final = 10_000
"""How long a statement waits for a row that somebody else has locked."""

ROLE: Final = "palimpsest_app"
"""Whom connections act as: it owns nothing and is no superuser, so that row-level security holds against it."""

# Every statement here is a short indexed one: compiling it to machine code, or planning it anew each time, would take
# longer than running it.
SERVER_SETTINGS: Final = {
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "lock_timeout": str(LOCK_MS),
    "application_name": "palimpsest",
}

_TOO_LONG: Final = (asyncpg.LockNotAvailableError, asyncpg.QueryCanceledError)
_FULL: Final = (asyncpg.DiskFullError, asyncpg.OutOfMemoryError)

FULL_SECONDS: Final = 5.0
"""For so long after a statement found no room the database is not called ready. Whether there is room again only a
statement of that size can tell."""

KEPT_SECONDS: Final = 10.0
"""How long connections stay out of the driver's pool that are free, for the next who needs one, before they all go back
to it, so that it can close those that are idle: to be lent one by it takes a task, a timer and several locks."""

TRIES: Final = 3
"""How often a statement that is a transaction of its own is tried when it is the one that must give way: in a deadlock,
or on a replica to what that replays.

Here all rows are locked in one order, and each by one way. Processes of an earlier version that still run during an
upgrade, and an operator's own statements, may do otherwise."""

_tenant: Final[ContextVar[UUID | None]] = ContextVar("tenant", default=None)


def act_for(tenant_id: UUID) -> None:
    """From here on, the statements of this task, and of those it starts, are made for a tenant."""
    _tenant.set(tenant_id)


@contextmanager
def acting_for(tenant_id: UUID) -> Iterator[None]:
    """The statements of the block are made for a tenant. Where none is acted for, no tenant's rows are seen."""
    before = _tenant.set(tenant_id)
    try:
        yield
    finally:
        _tenant.reset(before)


class Remembering(asyncpg.Connection):
    """A connection that knows which tenant it is set to."""

    _known = True
    _set_to: UUID | None = None

    async def set_to(self, tenant_id: UUID | None) -> None:
        """Have what follows done for a tenant, or for none. Costs nothing where that is so already."""
        if self._known and self._set_to == tenant_id:
            return
        self._known = False  # until the server has said so
        await self.execute(_set(tenant_id))
        self._known, self._set_to = True, tenant_id


def _set(tenant_id: UUID | None) -> str:
    return f"SET palimpsest.tenant = '{tenant_id or ''}'"


STATEMENTS_PREPARED_MAX: Final = 100
"""Of one connection; behind a pooler none stays prepared."""

Driver = asyncpg.Connection | PoolConnectionProxy


async def _json_as_text(driver: Driver) -> None:
    """JSON columns come and go as text: what is stored is kept byte for byte, and parsed only where it is needed."""
    async with driver.transaction():  # behind a pooler nothing else stays on one connection
        for name in ("json", "jsonb"):
            await driver.set_type_codec(name, schema="pg_catalog", encoder=str, decoder=str, format="text")


async def _keep(_: Driver) -> None:
    """The one session state that is set outside a transaction is the tenant, and the connection remembers that: nothing
    needs a round trip to reset it."""


STATEMENTS_KNOWN_MAX: Final = 1_000
PARAMETER: Final = re.compile(r"(?<![:\w]):([a-z][a-z0-9_]*)")
"""A name behind one colon: neither a cast (`::bigint`), nor part of a word or a number (`HH24:MI`)."""


@lru_cache(maxsize=STATEMENTS_KNOWN_MAX)
def numbered(sql: str) -> tuple[str, tuple[str, ...]]:
    """A statement with its parameters by number, as the protocol wants them, and their names in that order."""
    names = tuple(dict.fromkeys(PARAMETER.findall(sql)))
    return PARAMETER.sub(lambda found: f"${names.index(found[1]) + 1}", sql), names


def _statement(sql: str, values: Mapping[str, object]) -> tuple[Any, ...]:
    """What the driver takes for a statement. Raises TypeError unless the statement has exactly these parameters."""
    text, names = numbered(sql)
    if len(values) != len(names) or not all(map(values.__contains__, names)):
        raise TypeError(f"the statement has the parameters {sorted(names)}, given were {sorted(values)}")
    return text, *map(values.__getitem__, names)


class Connection:
    """A borrowed driver connection inside one transaction."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def fetch(self, sql: str, /, **values: object) -> Sequence[asyncpg.Record]:
        """All rows."""
        return cast(Sequence[asyncpg.Record], await self._run("fetch", sql, values))

    async def fetchrow(self, sql: str, /, **values: object) -> asyncpg.Record | None:
        """The first row, if any."""
        return cast(asyncpg.Record | None, await self._run("fetchrow", sql, values))

    async def execute(self, sql: str, /, **values: object) -> str:
        """The command's tag."""
        return str(await self._run("execute", sql, values))

    async def _run(self, method: str, sql: str, values: Mapping[str, object]) -> object:
        with tracing.statement(sql):
            return await getattr(self._driver, method)(*_statement(sql, values))


class PoolState(NamedTuple):
    """How many connections there may be, are in use and lie ready, and how many statements wait for one."""

    limit: int
    used: int
    free: int
    waiting: int


class _GaveWay(StoreUnavailable):
    """A deadlock was broken at the cost of this transaction, or a replica had to replay what took its rows away."""


class Database:
    """The pool; raises StoreUnavailable for whatever a retry may cure, asyncpg's own errors otherwise.

    Connections are made when they are first needed, so a database that is down does not keep a server from starting.
    They act as `role`; None: as the login itself, which as the tables' owner sees every tenant's rows. `pooler_url` is
    where a transaction pooler (PgBouncer) takes statements for the same database: behind it a connection is another
    one with each transaction, so each sets for itself whatever it needs. `waited` is told for how many seconds each
    connection was waited for that did not lie ready.
    """

    def __init__(
        self,
        url: str,
        *,
        pool_size: int,
        role: str | None = ROLE,
        pooler_url: str | None = None,
        waited: Callable[[float], None] = lambda _: None,
    ) -> None:
        self._waited = waited
        self._url = url
        self._settings = SERVER_SETTINGS if role is None else {**SERVER_SETTINGS, "role": role}
        self._pooled = pooler_url is not None
        self._full_until = 0.0
        self._kept: list[PoolConnectionProxy] = []
        self._waiting = 0
        self._closing = False
        self._sweep: asyncio.TimerHandle | None = None
        self._returned: asyncio.Future[Any] | None = None
        self._pool = asyncpg.create_pool(
            pooler_url or url,
            connect=cast(Any, connect),  # it takes whatever the driver's own takes
            min_size=0,
            max_size=pool_size,
            init=_json_as_text,
            reset=_keep,
            command_timeout=COMMAND_SECONDS,
            connection_class=Remembering,
            statement_cache_size=0 if self._pooled else STATEMENTS_PREPARED_MAX,
            server_settings={"application_name": "palimpsest"} if self._pooled else self._settings,
        )

    async def fetch(self, sql: str, /, **values: object) -> Sequence[asyncpg.Record]:
        """All rows of one statement."""
        return cast(Sequence[asyncpg.Record], await self._alone("fetch", sql, values))

    async def fetchrow(self, sql: str, /, **values: object) -> asyncpg.Record | None:
        """The first row of one statement."""
        return cast(asyncpg.Record | None, await self._alone("fetchrow", sql, values))

    async def execute(self, sql: str, /, **values: object) -> str:
        """The tag of one statement."""
        return str(await self._alone("execute", sql, values))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """Several statements, all or nothing."""
        driver = await self._borrow()
        try:
            async with driver.transaction():
                if self._pooled:
                    await driver.execute(self._locally(_tenant.get()))
                yield Connection(driver)
        except BaseException as error:
            await self._failed(driver, error)
            raise
        await self._give_back(driver)

    def pool(self) -> PoolState:
        """Count this process's connections, and who waits for one."""
        size = self._pool.get_size()
        free = self._pool.get_idle_size() + len(self._kept)
        return PoolState(self._pool.get_max_size(), max(0, size - free), min(free, size), self._waiting)

    async def ready(self) -> None:
        """Raises StoreUnavailable where the database does not answer, or had no room for what was last written."""
        await self.fetchrow("SELECT 1")
        if time.monotonic() < self._full_until:
            raise StoreUnavailable("the database has no room to write")

    async def apart(self, name: str) -> asyncpg.Connection:
        """A new connection outside the pool, for its owner to close. Raises StoreUnavailable."""
        try:
            return await connect(self._url, server_settings={**self._settings, "application_name": name})
        except UNREACHABLE as error:
            raise StoreUnavailable("the database cannot be reached") from error

    async def close(self) -> None:
        """Close every connection."""
        await self._pool  # a pool that was never used cannot be closed otherwise
        self._closing = True
        if self._sweep is not None:
            self._sweep.cancel()
            self._give_back_kept()
        await self._pool.close()

    async def _alone(self, method: str, sql: str, values: Mapping[str, object]) -> object:
        """Run one statement in a transaction of its own, again if it had to give way: then it has changed nothing."""
        statement = _statement(sql, values)
        tries = 1
        while True:
            try:
                with tracing.statement(sql):
                    return await self._once(method, statement)
            except _GaveWay:
                if tries == TRIES:
                    raise
            tries += 1

    async def _once(self, method: str, statement: tuple[Any, ...]) -> object:
        if self._pooled:
            async with self.transaction() as tx:
                return await getattr(tx._driver, method)(*statement)
        driver = await self._borrow()
        try:
            result = await getattr(driver, method)(*statement)
        except BaseException as error:
            await self._failed(driver, error)
            raise
        await self._give_back(driver)
        return result

    def _locally(self, tenant_id: UUID | None) -> str:
        """What a transaction sets for itself where nothing before it holds, in one round trip."""
        settings = (f"SET LOCAL {name} = '{value}'" for name, value in self._settings.items())
        return "; ".join((*settings, _set(tenant_id).replace("SET", "SET LOCAL", 1)))

    async def _borrow(self) -> PoolConnectionProxy:
        """A connection that is set to the tenant that is acted for."""
        try:
            driver = await self._free()
        except Exception as error:
            self._tell(error)
            raise
        if not self._pooled:
            try:
                await cast(Remembering, driver).set_to(_tenant.get())
            except BaseException as error:
                await self._failed(driver, error)
                raise
        return driver

    async def _free(self) -> PoolConnectionProxy:
        while self._kept:
            driver = self._kept.pop()
            if not driver.is_closed():
                return driver
            await self._pool.release(driver)
        await self._pool  # does nothing but the first time
        self._waiting += 1
        began = time.perf_counter()
        try:
            return await self._pool.acquire(timeout=ACQUIRE_SECONDS)
        finally:
            self._waiting -= 1
            self._waited(time.perf_counter() - began)

    async def _give_back(self, driver: PoolConnectionProxy) -> None:
        if self._waiting or self._closing:
            await self._pool.release(driver)
            return
        self._kept.append(driver)
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(KEPT_SECONDS, self._give_back_kept)

    def _give_back_kept(self) -> None:
        self._sweep = None
        kept, self._kept = self._kept, []
        self._returned = asyncio.gather(*map(self._pool.release, kept), return_exceptions=True)

    async def _failed(self, driver: PoolConnectionProxy, error: BaseException) -> None:
        """Give a connection back whose use has ended in an error. Raises StoreUnavailable if a retry may cure it."""
        if isinstance(error, UNREACHABLE):
            with suppress(asyncpg.InterfaceError):  # the pool has noticed by itself
                driver.terminate()  # its end may not have been noticed yet: it must not be lent again
        await self._pool.release(driver)
        self._tell(error)

    def _tell(self, error: BaseException) -> None:
        """Raise StoreUnavailable for an error that a retry may cure."""
        if isinstance(error, asyncpg.DeadlockDetectedError | asyncpg.SerializationError):
            raise _GaveWay("the database let another transaction go first") from error
        if isinstance(error, _TOO_LONG):
            raise StoreUnavailable(f"the database has kept this waiting for too long: {error}") from error
        if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
            raise StoreUnavailable(f"the database takes no writes now: {error}") from error
        if isinstance(error, _FULL):
            self._full_until = time.monotonic() + FULL_SECONDS
            raise StoreUnavailable(f"the database cannot write: {error}") from error
        if isinstance(error, UNREACHABLE):
            raise StoreUnavailable("the database cannot be reached") from error
        if isinstance(error, asyncpg.InterfaceError) and "clos" in str(error):
            # Closed or closing: all others are mistakes of our own.
            raise StoreUnavailable("the connection to the database was lost") from error
