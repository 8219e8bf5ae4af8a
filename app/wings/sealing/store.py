"""Tenants' content keys, wrapped by the operator's key."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from app.store.engine import Connection, Database, Executor
from app.store.rows import columns, decode


@dataclass(frozen=True, slots=True)
class ContentKey:
    """A tenant's content key; `wrapped` is None once it was dropped."""

    tenant_id: UUID
    wrapped: bytes | None
    created_at: datetime
    dropped_at: datetime | None


_COLUMNS = columns(ContentKey)


async def find(database: Database, tenant_id: UUID) -> ContentKey | None:
    """Return a tenant's key; None if it never had one."""
    row = await database.fetchrow(
        f"SELECT {_COLUMNS} FROM content_keys WHERE tenant_id = :tenant_id", tenant_id=tenant_id
    )
    return None if row is None else decode(ContentKey, row)


async def make(database: Database, tenant_id: UUID, wrapped: bytes) -> None:
    """Store a tenant's key, unless it has or had one."""
    await database.execute(
        "INSERT INTO content_keys (tenant_id, wrapped) VALUES (:tenant_id, :wrapped) ON CONFLICT DO NOTHING",
        tenant_id=tenant_id,
        wrapped=wrapped,
    )


@dataclass(frozen=True, slots=True)
class ListedKey(ContentKey):
    """A content key with the name of its tenant."""

    tenant: str


async def all_keys(connection: Executor) -> list[ListedKey]:
    """Return all tenants' keys by tenant name. Only the tables' owner sees them."""
    rows = await connection.fetch(
        f"SELECT {_COLUMNS}, (SELECT name FROM tenants t WHERE t.tenant_id = k.tenant_id) AS tenant "
        "FROM content_keys k ORDER BY tenant"
    )
    return [decode(ListedKey, row) for row in rows]


async def rewrap(tx: Connection, tenant_id: UUID, wrapped: bytes) -> None:
    """Replace the wrapping of a tenant's key, unless the key was dropped."""
    await tx.execute(
        "UPDATE content_keys SET wrapped = :wrapped WHERE tenant_id = :tenant_id AND wrapped IS NOT NULL",
        tenant_id=tenant_id,
        wrapped=wrapped,
    )


async def drop(database: Database, tenant: str) -> bool:
    """Drop the key of the tenant with this name; return False if it has none left to drop."""
    row = await database.fetchrow(
        "UPDATE content_keys k SET wrapped = NULL, dropped_at = now() FROM tenants t "
        "WHERE t.tenant_id = k.tenant_id AND t.name = :name AND k.wrapped IS NOT NULL RETURNING k.tenant_id",
        name=tenant,
    )
    return row is not None
