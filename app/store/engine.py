"""The connection pool.

One statement through `fetch`, `fetchrow` or `execute` is one round trip in a transaction of its own. SQLAlchemy
describes the tables for migrations (`migrations/tables.py`); its pool and its statement layer would add a third of a
millisecond to every call here (docs/decisions/0003).

Whose rows a statement may touch is said here and nowhere else: the server holds row-level security against the role
that connections act as, and a connection is set to the tenant that its borrower acts for (docs/decisions/0020).
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Final, NamedTuple, TypeVar, cast
from uuid import UUID

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from app import tracing
from app.core.errors import SessionGone, StoreUnavailable
from app.store.connecting import UNREACHABLE, connect
from app.store.driver import Driver, Remembering, is_distributed, json_as_text, keep, setting
from app.store.statements import given

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

# Where sessions are in shards, which one a statement goes to is known by its values only; and there the tenant that is
# set for a transaction must be set as well.
# Citus hides shards from the catalog by a filter for which the driver's look-up of a type takes seconds.
SHARD_SETTINGS: Final = {
    "plan_cache_mode": "force_custom_plan",
    "citus.propagate_set_commands": "local",
    "citus.override_table_visibility": "off",
}

QUEUE_CONNECTIONS: Final = 2
"""So many more connections a process has to a distributed database, for the queue alone."""

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


STATEMENTS_PREPARED_MAX: Final = 100
"""Of one connection; behind a pooler none stays prepared."""


Result = TypeVar("Result")


class Connection:
    """A borrowed driver connection inside one transaction.

    `queue` is where statements about the workers' queue are run: here. With a distributed database they are run on the
    coordinator, each in a transaction of its own that is committed before this one: a transaction that spans nodes is
    committed on the shard first, and a crash before the coordinator's part of it would lose a job. So whoever makes a
    job, or lets one go, holds the session's row: it is released when the queue already says so.
    """

    def __init__(self, driver: Driver, queue: "Database | None" = None) -> None:
        self._driver = driver
        self.queue: Connection | Database = queue or self

    async def distributed(self) -> bool:
        """Whether sessions are in shards (docs/scaling.md)."""
        return self.queue is not self

    async def fetch(self, sql: str, /, **values: object) -> Sequence[asyncpg.Record]:
        """All rows."""
        return cast(Sequence[asyncpg.Record], await self._run("fetch", sql, values))

    async def fetchrow(self, sql: str, /, **values: object) -> asyncpg.Record | None:
        """The first row, if any."""
        return cast(asyncpg.Record | None, await self._run("fetchrow", sql, values))

    async def execute(self, sql: str, /, **values: object) -> str:
        """The command's tag."""
        return str(await self._run("execute", sql, values))

    async def together(self, work: Callable[["Connection"], Awaitable[Result]]) -> Result:
        """Do work in this transaction."""
        return await work(self)

    async def _run(self, method: str, sql: str, values: Mapping[str, object]) -> object:
        with tracing.statement(sql):
            return await getattr(self._driver, method)(*given(sql, values))


class PoolState(NamedTuple):
    """How many connections there may be, are in use and lie ready, and how many statements wait for one."""

    limit: int
    used: int
    free: int
    waiting: int


class _GaveWay(StoreUnavailable):
    """A deadlock was broken at the cost of this transaction, or a replica had to replay what took its rows away."""


async def _retried(once: Callable[[], Awaitable[Result]]) -> Result:
    """Do what is a transaction of its own, at most TRIES times."""
    tries = 1
    while True:
        try:
            return await once()
        except _GaveWay:
            if tries == TRIES:
                raise
        tries += 1


class Database:
    """The pool; raises StoreUnavailable for what a retry may cure, SessionGone, and asyncpg's own errors otherwise.

    Connections are made when they are first needed, so a database that is down does not keep a server from starting.
    They act as `role`; None: as the login itself, which as the tables' owner sees every tenant's rows. `pooler_url` is
    where a transaction pooler (PgBouncer) takes statements for the same database: behind it a connection is another
    one with each transaction, so each sets for itself whatever it needs. So it does on a distributed database, which
    passes only that on to the shards; whether it is one is found out by the first connection. `waited` is told for how
    many seconds each connection was waited for that did not lie ready.
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
        self._url, self._role, self._pooler_url = url, role, pooler_url
        self._settings = SERVER_SETTINGS if role is None else {**SERVER_SETTINGS, "role": role}
        self._pooled = pooler_url is not None
        self._distributed: bool | None = None
        self._queue: Database | None = None
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
            init=self._made,
            reset=keep,
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
                if self._pooled or self._distributed:
                    for settings in self._locally(_tenant.get()):
                        await driver.execute(settings)
                yield Connection(driver, self._queue)
        except BaseException as error:
            await self._failed(driver, error)
            raise
        await self._give_back(driver)

    async def distributed(self) -> bool:
        """Whether sessions are in shards (docs/scaling.md)."""
        if self._distributed is None:
            await self._give_back(await self._borrow())
        return bool(self._distributed)

    @property
    def queue(self) -> "Database":
        """Where statements about the workers' queue are run (`Connection.queue`)."""
        return self._queue or self

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
        if self._queue is not None:
            await self._queue.close()

    async def together(self, work: Callable[[Connection], Awaitable[Result]]) -> Result:
        """Do work in a transaction of its own, again if it had to give way: then it has changed nothing."""

        async def once() -> Result:
            async with self.transaction() as tx:
                return await work(tx)

        return await _retried(once)

    async def _alone(self, method: str, sql: str, values: Mapping[str, object]) -> object:
        """Run one statement in a transaction of its own, again if it had to give way: then it has changed nothing."""
        statement = given(sql, values)

        async def once() -> object:
            with tracing.statement(sql):
                return await self._once(method, statement)

        return await _retried(once)

    async def _once(self, method: str, statement: tuple[Any, ...]) -> object:
        if self._distributed is None:
            await self.distributed()
        if self._pooled or self._distributed:
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

    def _locally(self, tenant_id: UUID | None) -> tuple[str, ...]:
        """What a transaction sets for itself where nothing before it holds, in a round trip each."""
        tenant = setting(tenant_id).replace("SET", "SET LOCAL", 1)
        ours = self._settings.items() if self._pooled else ()
        if not self._distributed:
            return ("; ".join((*(f"SET LOCAL {name} = '{value}'" for name, value in ours), tenant)),)
        # Citus has the nodes repeat the string of a SET LOCAL, and not this: as that role, they would find nothing for
        # the functions that look across tenants as the tables' owner.
        here = ", ".join(f"set_config('{name}', '{value}', true)" for name, value in ours)
        return (*((f"SELECT {here}",) if here else ()), f"SET LOCAL lock_timeout = '{LOCK_MS}'; {tenant}")

    async def _made(self, driver: Driver) -> None:
        """Prepare a new connection."""
        if self._distributed is None and await is_distributed(driver):
            self._settings = {**self._settings, **SHARD_SETTINGS}
            self._queue = Database(self._url, pool_size=QUEUE_CONNECTIONS, role=self._role, pooler_url=self._pooler_url)
            self._queue._distributed = False  # what it is asked is the coordinator's
        self._distributed = self._queue is not None
        if self._distributed and not self._pooled:
            await driver.execute("; ".join(f"SET {name} = '{value}'" for name, value in SHARD_SETTINGS.items()))
        await json_as_text(driver)

    async def _borrow(self) -> PoolConnectionProxy:
        """A connection that is set to the tenant that is acted for."""
        try:
            driver = await self._free()
        except Exception as error:
            self._tell(error)
            raise
        if not self._pooled and not self._distributed:
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
        """Raise StoreUnavailable for an error that a retry may cure, SessionGone for a session that is gone."""
        if isinstance(error, asyncpg.ForeignKeyViolationError) and "session_id_fkey" in (error.constraint_name or ""):
            raise SessionGone("the session has been erased") from error
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
