"""The driver: connections to the first host that accepts one, the tenant each is set to, and named parameters."""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Protocol
from uuid import UUID

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from app.store import dsn

if TYPE_CHECKING:
    from app.store.engine import Database, Executor


DriverConnection = asyncpg.Connection | PoolConnectionProxy


BUILTIN_OIDS_END: Final = 10_000
"""Types with an oid below this have it in every database, in each version of Postgres."""
_types: Final[dict[frozenset[int], Any]] = {}


class TenantConnection(asyncpg.Connection):
    """A connection that remembers the tenant it is set to."""

    _known = True
    _set_to: UUID | None = None

    async def set_to(self, tenant_id: UUID | None) -> None:
        """Set the tenant of later statements, or none. Does nothing if it is set already."""
        if self._known and self._set_to == tenant_id:
            return
        self._known = False  # until the server has confirmed it
        await self.execute(tenant_setting(tenant_id))
        self._known, self._set_to = True, tenant_id

    async def _introspect_types(self, typeoids: Iterable[int], *seconds: float | None) -> Any:
        """Return the server's description of types. That of built-in types is remembered for the whole process.

        The driver asks on each connection, before its first statement with an array: 10 ms of the server's CPU.
        """
        asked = frozenset(typeoids)
        found = _types.get(asked) or await super()._introspect_types(asked, *seconds)  # type: ignore[misc]  # private
        if max(asked) < BUILTIN_OIDS_END:
            _types[asked] = found
        return found


def tenant_setting(tenant_id: UUID | None) -> str:
    """Return the statement that sets a connection to a tenant, or to none."""
    return f"SET palimpsest.tenant = '{tenant_id or ''}'"


async def json_as_text(raw: DriverConnection) -> None:
    """Transfer JSON columns as text: they are stored byte for byte, and parsed only where needed."""
    async with raw.transaction():  # through a pooler, only a transaction stays on one connection
        for name in ("json", "jsonb"):
            await raw.set_type_codec(name, schema="pg_catalog", encoder=str, decoder=str, format="text")


async def skip_reset(_: DriverConnection) -> None:
    """Skip the reset of a connection: outside a transaction only its tenant is set, and it remembers that."""


class Placement(Protocol):
    """A way to run the store's statements on a database whose tables are not all on the server that is connected to.

    Found once per database, with its first connection. Without one, a statement is sent as it is.
    """

    @property
    def settings(self) -> Mapping[str, str]:
        """The settings of connections, in addition to SERVER_SETTINGS."""

    def transaction_settings(self, settings: Mapping[str, str], tenant: str) -> Sequence[str]:
        """Return statements that set a transaction's settings; `tenant` is the one that sets its tenant."""

    async def run(self, on: "Executor", method: str, sql: str, values: Mapping[str, object]) -> object:
        """Return the result of a statement, as the driver's `method` (fetch, fetchrow, execute) would.

        It may send other statements, with `Connection.send`, in the transaction or in one of its own.
        """

    async def aclose(self) -> None:
        """Close the placement's own connections."""


FindPlacement = Callable[[DriverConnection, "Database"], Awaitable[Placement | None]]
"""Returns the placement of a database, given a connection to it; None if it needs none."""


STATEMENTS_KNOWN_MAX: Final = 1_000
PARAMETER: Final = re.compile(r"(?<![:\w]):([a-z][a-z0-9_]*)")
"""A name after one colon: neither a cast (`::bigint`), nor part of a word or a number (`HH24:MI`)."""


@lru_cache(maxsize=STATEMENTS_KNOWN_MAX)
def numbered(sql: str) -> tuple[str, tuple[str, ...]]:
    """Return a statement with its parameters numbered, as the protocol wants them, and their names in that order."""
    names = tuple(dict.fromkeys(PARAMETER.findall(sql)))
    return PARAMETER.sub(lambda found: f"${names.index(found[1]) + 1}", sql), names


def bind(sql: str, values: Mapping[str, object]) -> tuple[Any, ...]:
    """Return the driver's arguments for a statement. Raises TypeError unless `values` has exactly its parameters."""
    text, names = numbered(sql)
    if len(values) != len(names) or not all(map(values.__contains__, names)):
        raise TypeError(f"the statement has the parameters {sorted(names)}, given were {sorted(values)}")
    return text, *map(values.__getitem__, names)


CONNECT_SECONDS: Final = 10.0
HOST_SECONDS: Final = 3.0
"""Time limit of each host if there are several: two silent ones leave time for the third."""

UNREACHABLE: Final = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.ObjectNotInPrerequisiteStateError,  # a database that takes no connections (ALLOW_CONNECTIONS false)
    asyncpg.TooManyConnectionsError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.InternalClientError,  # use of a half-closed connection; a host that takes no writes
)
"""Errors by which a host cannot be used now, but may be later."""


async def connect(url: str, **options: Any) -> asyncpg.Connection:
    """Open a connection to the first host that accepts one, as libpq does it.

    The driver's own search has one time limit for all hosts: one that is gone without a word would use it up, and the
    one that was promoted in its place would never be tried. Raises the last host's error, or immediately
    an error that is not in UNREACHABLE.
    """
    *others, last = dsn.hosts(url)
    for one in others:
        with suppress(*UNREACHABLE):
            return await asyncpg.connect(one, timeout=HOST_SECONDS, **options)
    return await asyncpg.connect(last, timeout=HOST_SECONDS if others else CONNECT_SECONDS, **options)
