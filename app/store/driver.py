"""The driver's connections: their preparation, and the tenant each is set to."""

from uuid import UUID

import asyncpg
from asyncpg.pool import PoolConnectionProxy

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
