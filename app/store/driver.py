"""The driver's connections: their preparation, the tenant each is set to, and where their statements are sent."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

import asyncpg
from asyncpg.pool import PoolConnectionProxy

if TYPE_CHECKING:
    from app.store.engine import Connection, Database

Driver = asyncpg.Connection | PoolConnectionProxy


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


def tenant_setting(tenant_id: UUID | None) -> str:
    """Return the statement that sets a connection to a tenant, or to none."""
    return f"SET palimpsest.tenant = '{tenant_id or ''}'"


async def json_as_text(driver: Driver) -> None:
    """Transfer JSON columns as text: they are stored byte for byte, and parsed only where needed."""
    async with driver.transaction():  # through a pooler, only a transaction stays on one connection
        for name in ("json", "jsonb"):
            await driver.set_type_codec(name, schema="pg_catalog", encoder=str, decoder=str, format="text")


async def skip_reset(_: Driver) -> None:
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

    async def run(self, on: "Connection | Database", method: str, sql: str, values: Mapping[str, object]) -> object:
        """Return the result of a statement, as the driver's `method` (fetch, fetchrow, execute) would.

        It may send other statements, with `Connection.send`, in the transaction or in one of its own.
        """

    async def aclose(self) -> None:
        """Close the placement's own connections."""


FindPlacement = Callable[[Driver, "Database"], Awaitable[Placement | None]]
"""Returns the placement of a database, given a connection to it; None if it needs none."""
