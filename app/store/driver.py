"""A connection of the driver: how it is prepared, and which tenant it is set to."""

from uuid import UUID

import asyncpg
from asyncpg.pool import PoolConnectionProxy

Driver = asyncpg.Connection | PoolConnectionProxy


class Remembering(asyncpg.Connection):
    """A connection that knows which tenant it is set to."""

    _known = True
    _set_to: UUID | None = None

    async def set_to(self, tenant_id: UUID | None) -> None:
        """Have what follows done for a tenant, or for none. Costs nothing where that is so already."""
        if self._known and self._set_to == tenant_id:
            return
        self._known = False  # until the server has said so
        await self.execute(setting(tenant_id))
        self._known, self._set_to = True, tenant_id


def setting(tenant_id: UUID | None) -> str:
    """The statement that sets a connection to a tenant, or to none."""
    return f"SET palimpsest.tenant = '{tenant_id or ''}'"


async def json_as_text(driver: Driver) -> None:
    """JSON columns come and go as text: what is stored is kept byte for byte, and parsed only where it is needed."""
    async with driver.transaction():  # behind a pooler nothing else stays on one connection
        for name in ("json", "jsonb"):
            await driver.set_type_codec(name, schema="pg_catalog", encoder=str, decoder=str, format="text")


async def keep(_: Driver) -> None:
    """Leave a connection as it is: outside a transaction only its tenant is set, and it remembers that."""


async def is_distributed(driver: Driver) -> bool:
    """Return whether the sessions of a database are in shards. All is laid out in one transaction: so then all is."""
    if await driver.fetchval("SELECT to_regclass('pg_dist_partition')") is None:
        return False
    return bool(
        await driver.fetchval(
            "SELECT EXISTS (SELECT FROM pg_dist_partition WHERE logicalrelid = to_regclass('sessions'))"
        )
    )
