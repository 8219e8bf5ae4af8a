"""API keys: only their hashes are stored."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID, uuid4

from app.store.engine import Database


@dataclass(frozen=True, slots=True)
class KeyRow:
    """A key as it is listed."""

    key_id: UUID
    tenant: str
    name: str
    scopes: tuple[str, ...]
    created_at: datetime
    revoked_at: datetime | None


async def create(database: Database, tenant: str, name: str, scopes: Sequence[str], secret_sha256: bytes) -> UUID:
    """Store a key, and its tenant if that is new."""
    key_id = uuid4()
    async with database.transaction() as tx:
        await tx.execute(
            "INSERT INTO tenants (tenant_id, name) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING", uuid4(), tenant
        )
        await tx.execute(
            "INSERT INTO api_keys (key_id, tenant_id, name, secret_sha256, scopes) "
            "SELECT $1, tenant_id, $3, $4, $5 FROM tenants WHERE name = $2",
            key_id,
            tenant,
            name,
            secret_sha256,
            list(scopes),
        )
    return key_id


async def page(database: Database) -> list[KeyRow]:
    """All keys, oldest first."""
    rows = await database.fetch(
        "SELECT k.key_id, t.name AS tenant, k.name, k.scopes, k.created_at, k.revoked_at "
        "FROM api_keys k JOIN tenants t USING (tenant_id) ORDER BY k.created_at, k.key_id"
    )
    return [
        KeyRow(r["key_id"], r["tenant"], r["name"], tuple(r["scopes"]), r["created_at"], r["revoked_at"]) for r in rows
    ]


async def revoke(database: Database, key_id: UUID) -> bool:
    """Whether there was such a key that still worked."""
    row = await database.fetchrow(
        "UPDATE api_keys SET revoked_at = now() WHERE key_id = $1 AND revoked_at IS NULL RETURNING key_id", key_id
    )
    return row is not None


async def holder(database: Database, secret_sha256: bytes) -> tuple[UUID, tuple[str, ...], UUID] | None:
    """The tenant and scopes of a working key, and its id."""
    row = await database.fetchrow(
        "SELECT tenant_id, scopes, key_id FROM palimpsest_across_key($1) WHERE revoked_at IS NULL", secret_sha256
    )
    return None if row is None else (row["tenant_id"], tuple(row["scopes"]), row["key_id"])


async def any_made(database: Database) -> bool:
    """Whether there was ever a key. Revoked ones count: revoking the last must not open the server to everyone."""
    row = await database.fetchrow("SELECT palimpsest_across_keys_made() AS made")
    return row is not None and bool(row["made"])
