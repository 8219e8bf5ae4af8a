"""The connection pool.

One statement through `fetch`, `fetchrow` or `execute` is one round trip in a transaction of its own. SQLAlchemy
describes the tables for migrations (`migrations/tables.py`); its pool and statement layer would add a third of a
millisecond to every call here (docs/decisions/0003).

This module alone decides whose rows a statement may touch: the server enforces row-level security on the role that
connections use, and a connection is set to the tenant that its borrower acts for (docs/decisions/0020).
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Final, NamedTuple, TypeVar, cast
from uuid import UUID

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from app.core.errors import SessionGone, StoreUnavailable
from app.store.driver import (
    UNREACHABLE,
    DriverConnection,
    FindPlacement,
    Placement,
    TenantConnection,
    bind,
    connect,
    json_as_text,
    skip_reset,
    tenant_setting,
)
from app.tracing import tracer

ACQUIRE_SECONDS: Final = 10.0
COMMAND_SECONDS: Final = 60.0
LOCK_MS: Final = 10_000
"""Time that a statement waits for a row locked by another transaction."""

ROLE: Final = "palimpsest_app"
"""The role that connections use. It owns nothing and is no superuser, so row-level security applies to it."""

# All statements are short and indexed: compiling one to machine code, or planning it each time, would take longer than
# running it.
SERVER_SETTINGS: Final = {
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "lock_timeout": str(LOCK_MS),
    "application_name": "palimpsest",
}

_TOO_LONG: Final = (asyncpg.LockNotAvailableError, asyncpg.QueryCanceledError)
_FULL: Final = (asyncpg.DiskFullError, asyncpg.OutOfMemoryError)

FULL_SECONDS: Final = 5.0
"""Time for which `ready` fails after a statement found disk or memory full. Smaller writes may still succeed."""

IDLE_SECONDS: Final = 10.0
"""Time for which free connections are lent directly, before all return to the driver's pool, which closes idle ones. To
borrow one from that pool takes a task, a timer and several locks."""

TRIES: Final = 3
"""Attempts at a transaction that loses a deadlock or, on a replica, a conflict with replay. Statements here lock rows
in one order. Those of an earlier version during an upgrade, or of an operator, may not."""

_tenant: Final[ContextVar[UUID | None]] = ContextVar("tenant", default=None)


def act_for(tenant_id: UUID) -> None:
    """Set the tenant of the later statements of this task and of the tasks it starts."""
    _tenant.set(tenant_id)


@contextmanager
def acting_for(tenant_id: UUID) -> Iterator[None]:
    """Set the tenant of the block's statements. Without a tenant, no tenant's rows are visible."""
    before = _tenant.set(tenant_id)
    try:
        yield
    finally:
        _tenant.reset(before)


_copy: Final[ContextVar["Database | None"]] = ContextVar("copy", default=None)


@contextmanager
def reading_from(copy: "Database") -> Iterator[None]:
    """Run the block's statements on a copy of their database, such as a replica."""
    before = _copy.set(copy)
    try:
        yield
    finally:
        _copy.reset(before)


STATEMENTS_PREPARED_MAX: Final = 100
"""Limit of each connection; through a pooler none stays prepared."""


Result = TypeVar("Result")


class Executor(ABC):
    """A connection inside a transaction, or the pool, which runs each statement in a transaction of its own."""

    async def fetch(self, sql: str, /, **values: object) -> Sequence[asyncpg.Record]:
        """Run one statement and return all rows."""
        return cast(Sequence[asyncpg.Record], await self._run("fetch", sql, values))

    async def fetchrow(self, sql: str, /, **values: object) -> asyncpg.Record | None:
        """Run one statement and return the first row; None if there is none."""
        return cast(asyncpg.Record | None, await self._run("fetchrow", sql, values))

    async def execute(self, sql: str, /, **values: object) -> str:
        """Run one statement and return its tag."""
        return str(await self._run("execute", sql, values))

    @abstractmethod
    async def _run(self, method: str, sql: str, values: Mapping[str, object]) -> object:
        """Run one statement by the driver's `method`."""

    @abstractmethod
    async def run_in_transaction(self, work: Callable[["Connection"], Awaitable[Result]]) -> Result:
        """Run `work` in a transaction."""


class Connection(Executor):
    """A borrowed driver connection inside one transaction."""

    def __init__(self, raw: DriverConnection, placement: Placement | None = None) -> None:
        self._raw, self._placement = raw, placement

    async def run_in_transaction(self, work: Callable[["Connection"], Awaitable[Result]]) -> Result:
        """Run `work` in this transaction."""
        return await work(self)

    async def _run(self, method: str, sql: str, values: Mapping[str, object]) -> object:
        if self._placement is not None:
            return await self._placement.run(self, method, sql, values)
        with tracer.get().statement_span(sql):
            return await getattr(self._raw, method)(*bind(sql, values))

    async def send(self, method: str, sql: str, values: Mapping[str, object]) -> object:
        """Run a statement as it is, by the driver's `method`."""
        return await Connection(self._raw)._run(method, sql, values)


class PoolState(NamedTuple):
    """Numbers of connections allowed, in use and free, and of statements that wait for one."""

    limit: int
    used: int
    free: int
    waiting: int


class _LostConflict(StoreUnavailable):
    """This transaction lost a deadlock or, on a replica, a conflict with replay."""


async def _retry(attempt: Callable[[], Awaitable[Result]]) -> Result:
    """Run a whole transaction, at most TRIES times."""
    tries = 1
    while True:
        try:
            return await attempt()
        except _LostConflict:
            if tries == TRIES:
                raise
        tries += 1


class Database(Executor):
    """The pool. Raises StoreUnavailable for errors that a retry may cure, SessionGone, and otherwise asyncpg's errors.

    Connections are opened when first needed, so a server starts even while the database is down. They act as `role`;
    None is the login itself, which as the tables' owner sees every tenant's rows. `pooler_url` is a transaction pooler
    (PgBouncer) for the same database. Through it, or with a placement, each transaction makes its own settings, since
    it may run on any connection. The first connection looks for the placement with `find_placement`.
    `on_wait` is called with the seconds that each connection took to get from the driver's pool.
    """

    def __init__(
        self,
        url: str,
        *,
        pool_size: int,
        role: str | None = ROLE,
        pooler_url: str | None = None,
        find_placement: FindPlacement | None = None,
        on_wait: Callable[[float], None] = lambda _: None,
    ) -> None:
        self._on_wait, self._url, self._role, self._pooler_url = on_wait, url, role, pooler_url
        self._settings = SERVER_SETTINGS if role is None else {**SERVER_SETTINGS, "role": role}
        self._through_pooler = pooler_url is not None
        self._find_placement = find_placement
        self._placement: Placement | None = None
        self._full_until = 0.0
        self._idle: list[PoolConnectionProxy] = []
        self._waiting, self._closing = 0, False
        self._sweep: asyncio.TimerHandle | None = None
        self._returned: asyncio.Future[Any] | None = None
        self._pool = asyncpg.create_pool(
            pooler_url or url,
            connect=cast(Any, connect),  # accepts the arguments of the driver's own
            min_size=0,
            max_size=pool_size,
            init=self._prepare,
            reset=skip_reset,
            command_timeout=COMMAND_SECONDS,
            connection_class=TenantConnection,
            statement_cache_size=0 if self._through_pooler else STATEMENTS_PREPARED_MAX,
            server_settings={"application_name": "palimpsest"} if self._through_pooler else self._settings,
        )

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """Open a transaction: all of its statements take effect or none does."""
        target = _copy.get() or self
        raw = await target._borrow()
        try:
            async with raw.transaction():
                if target._through_pooler or target._placement is not None:
                    for settings in target._local_settings(_tenant.get()):
                        await raw.execute(settings)
                yield Connection(raw, target._placement)
        except BaseException as error:
            await target._release_failed(raw, error)
            raise
        await target._release(raw)

    @property
    def is_direct(self) -> bool:
        """Whether a single statement is one round trip: connections keep their settings, and no placement adds any."""
        return not self._through_pooler and self._placement is None and self._find_placement is None

    def pool(self) -> PoolState:
        """Return the numbers of this process's connections, and of statements that wait for one."""
        size = self._pool.get_size()
        free = self._pool.get_idle_size() + len(self._idle)
        return PoolState(self._pool.get_max_size(), max(0, size - free), min(free, size), self._waiting)

    async def ready(self) -> None:
        """Raise StoreUnavailable if the database does not answer, or lately had no room for a write."""
        await self.fetchrow("SELECT 1")
        if time.monotonic() < self._full_until:
            raise StoreUnavailable("the database has no room to write")

    async def open_connection(self, name: str) -> asyncpg.Connection:
        """Open a connection outside the pool, which the caller closes. Raises StoreUnavailable."""
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
            self._release_idle()
        await self._pool.close()
        if self._placement is not None:
            await self._placement.aclose()

    def without_placement(self, pool_size: int) -> "Database":
        """Return another pool for this database, which sends statements unchanged."""
        return Database(self._url, pool_size=pool_size, role=self._role, pooler_url=self._pooler_url)

    async def run_in_transaction(self, work: Callable[[Connection], Awaitable[Result]]) -> Result:
        """Run `work` in a transaction of its own, and again if that was rolled back by a conflict."""

        async def attempt() -> Result:
            async with self.transaction() as tx:
                return await work(tx)

        return await _retry(attempt)

    async def _run(self, method: str, sql: str, values: Mapping[str, object]) -> object:
        target = _copy.get() or self
        if target._find_placement is not None:
            await target._release(await target._borrow())  # the first connection finds the placement
        if target._placement is not None:
            return await target._placement.run(target, method, sql, values)
        statement = bind(sql, values)

        async def attempt() -> object:
            with tracer.get().statement_span(sql):
                return await target._attempt(method, statement)

        return await _retry(attempt)

    async def _attempt(self, method: str, statement: tuple[Any, ...]) -> object:
        if self._through_pooler:
            async with self.transaction() as tx:
                return await getattr(tx._raw, method)(*statement)
        raw = await self._borrow()
        try:
            result = await getattr(raw, method)(*statement)
        except BaseException as error:
            await self._release_failed(raw, error)
            raise
        await self._release(raw)
        return result

    def _local_settings(self, tenant_id: UUID | None) -> Sequence[str]:
        """Return the statements with which a transaction makes its settings, one round trip each."""
        tenant = tenant_setting(tenant_id).replace("SET", "SET LOCAL", 1)
        ours = self._settings if self._through_pooler else {}
        if self._placement is not None:
            return self._placement.transaction_settings(ours, tenant)
        return ("; ".join((*(f"SET LOCAL {name} = '{value}'" for name, value in ours.items()), tenant)),)

    async def _prepare(self, raw: DriverConnection) -> None:
        """Prepare a new connection."""
        if self._find_placement is not None:
            found = await self._find_placement(raw, self)
            if self._find_placement is not None and found is not None:  # no other connection was faster
                self._placement, self._settings = found, {**self._settings, **found.settings}
            self._find_placement = None
        if self._placement is not None and not self._through_pooler:
            settings = self._placement.settings
            await raw.execute("; ".join(f"SET {name} = '{value}'" for name, value in settings.items()))
        await json_as_text(raw)

    async def _borrow(self) -> PoolConnectionProxy:
        """Borrow a connection that is set to the current tenant."""
        try:
            raw = await self._acquire()
        except Exception as error:
            self._translate(error)
            raise
        if not self._through_pooler and self._placement is None:
            try:
                await cast(TenantConnection, raw).set_to(_tenant.get())
            except BaseException as error:
                await self._release_failed(raw, error)
                raise
        return raw

    async def _acquire(self) -> PoolConnectionProxy:
        while self._idle:
            raw = self._idle.pop()
            with suppress(asyncpg.InterfaceError):  # raised for one that was lost, which the pool has taken back
                if not raw.is_closed():
                    return raw
            await self._pool.release(raw)
        await self._pool  # initializes the pool the first time
        self._waiting += 1
        began = time.perf_counter()
        try:
            return await self._pool.acquire(timeout=ACQUIRE_SECONDS)
        finally:
            self._waiting -= 1
            self._on_wait(time.perf_counter() - began)

    async def _release(self, raw: PoolConnectionProxy) -> None:
        if self._waiting or self._closing:
            await self._pool.release(raw)
            return
        self._idle.append(raw)
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._release_idle)

    def _release_idle(self) -> None:
        self._sweep = None
        kept, self._idle = self._idle, []
        self._returned = asyncio.gather(*map(self._pool.release, kept), return_exceptions=True)

    async def _release_failed(self, raw: PoolConnectionProxy, error: BaseException) -> None:
        """Release a connection whose use ended in an error. Raises StoreUnavailable if a retry may cure it."""
        if isinstance(error, UNREACHABLE):
            with suppress(asyncpg.InterfaceError):  # the pool has noticed already
                raw.terminate()  # it may not be known as closed yet, and must not be lent again
        await self._pool.release(raw)
        self._translate(error)

    def _translate(self, error: BaseException) -> None:
        """Raise StoreUnavailable for an error that a retry may cure, SessionGone if the session has been erased."""
        if isinstance(error, asyncpg.ForeignKeyViolationError) and "session_id_fkey" in (error.constraint_name or ""):
            raise SessionGone("the session has been erased") from error
        if isinstance(error, asyncpg.DeadlockDetectedError | asyncpg.SerializationError):
            raise _LostConflict("the database let another transaction go first") from error
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
            # The connection is closed or closing; any other interface error is a bug of ours.
            raise StoreUnavailable("the connection to the database was lost") from error
