"""API keys, of which only hashes are stored, and the keys that seal tenants' compaction items."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID, uuid4

import asyncpg

from app.core.lexicon.times import in_utc
from app.store.engine import Database, Executor
from app.store.rows import Value, columns, decode, parameters


@dataclass(frozen=True, slots=True)
class KeyRequest:
    """A requested key. `expires_at` None: never; `session_prefix` None: all sessions."""

    name: str
    scopes: Sequence[str]
    expires_at: datetime | None = None
    session_prefix: str | None = None


@dataclass(frozen=True, slots=True)
class KeyRow:
    """A key as it is listed."""

    id: UUID
    tenant: str
    name: str
    scopes: tuple[str, ...]
    created_at: datetime
    revoked_at: datetime | None
    expires_at: datetime | None
    session_prefix: str | None
    last_used_at: datetime | None


_LISTED: Final = (
    "k.key_id AS id, t.name AS tenant, k.name, k.scopes, k.created_at, k.revoked_at, k.expires_at, k.session_prefix, "
    "k.last_used_at"
)


@dataclass(frozen=True, slots=True)
class Holder:
    """The holder and rights of a key that is not revoked."""

    tenant_id: UUID
    scopes: tuple[str, ...]
    key_id: UUID
    expires_at: datetime | None
    session_prefix: str | None


def _decode(kind: type[Value], row: asyncpg.Record) -> Value:
    """Decode a key. Old rows may expire at infinity, which the driver returns without a time zone."""
    expires_at = row["expires_at"]
    return decode(kind, row, expires_at=None if expires_at is None else in_utc(expires_at))


async def create(database: Database, tenant: str, asked: KeyRequest, secret_sha256: bytes) -> KeyRow:
    """Store a key, and its tenant if new; return the key."""
    async with database.transaction() as tx:
        await tx.execute(
            "INSERT INTO tenants (tenant_id, name) VALUES (:tenant_id, :name) ON CONFLICT (name) DO NOTHING",
            tenant_id=uuid4(),
            name=tenant,
        )
        row = await tx.fetchrow("SELECT tenant_id FROM tenants WHERE name = :name", name=tenant)
        if row is None:
            raise RuntimeError(f"tenant {tenant!r} is gone although nobody deletes tenants")
        return await add(tx, row["tenant_id"], asked, secret_sha256)


async def add(connection: Executor, tenant_id: UUID, asked: KeyRequest, secret_sha256: bytes) -> KeyRow:
    """Store a key of an existing tenant, and return it."""
    row = await connection.fetchrow(
        "WITH k AS (INSERT INTO api_keys (key_id, tenant_id, name, secret_sha256, scopes, expires_at, session_prefix) "
        "VALUES (:key_id, :tenant_id, :name, :secret_sha256, :scopes, :expires_at, :session_prefix) RETURNING *) "
        f"SELECT {_LISTED} FROM k JOIN tenants t USING (tenant_id)",
        key_id=uuid4(),
        tenant_id=tenant_id,
        secret_sha256=secret_sha256,
        **parameters(asked),
    )
    if row is None:
        raise RuntimeError("a key was not stored although nothing was in its way")
    return _decode(KeyRow, row)


async def all_keys(database: Database) -> list[KeyRow]:
    """Return all tenants' keys, oldest first."""
    rows = await database.fetch(
        f"SELECT {_LISTED} FROM api_keys k JOIN tenants t USING (tenant_id) ORDER BY k.created_at, k.key_id"
    )
    return [_decode(KeyRow, row) for row in rows]


async def tenant_keys(
    database: Database, tenant_id: UUID, prefix: str, after: tuple[datetime, UUID] | None, limit: int
) -> list[KeyRow]:
    """Return a tenant's keys whose session prefix begins with `prefix`, newest first; all for an empty one."""
    created_at, key_id = after or (None, None)
    rows = await database.fetch(
        f"SELECT {_LISTED} FROM api_keys k JOIN tenants t USING (tenant_id) WHERE k.tenant_id = :tenant_id "
        "AND starts_with(coalesce(k.session_prefix, ''), :prefix) "
        "AND (:created_at::timestamptz IS NULL OR (k.created_at, k.key_id) < (:created_at, :key_id::uuid)) "
        "ORDER BY k.created_at DESC, k.key_id DESC LIMIT :limit",
        tenant_id=tenant_id,
        prefix=prefix,
        created_at=created_at,
        key_id=key_id,
        limit=limit,
    )
    return [_decode(KeyRow, row) for row in rows]


async def revoke_any(database: Database, key_id: UUID) -> bool:
    """Revoke a key; return False if it is unknown or revoked already."""
    row = await database.fetchrow(
        "UPDATE api_keys SET revoked_at = now() WHERE key_id = :key_id AND revoked_at IS NULL RETURNING key_id",
        key_id=key_id,
    )
    return row is not None


async def revoke_of_tenant(database: Database, tenant_id: UUID, prefix: str, key_id: UUID) -> bool:
    """Revoke a key that `tenant_keys` lists; return False only if there is none. One revoked before stays revoked."""
    row = await database.fetchrow(
        "UPDATE api_keys SET revoked_at = least(revoked_at, now()) "
        "WHERE key_id = :key_id AND tenant_id = :tenant_id AND starts_with(coalesce(session_prefix, ''), :prefix) "
        "RETURNING key_id",
        tenant_id=tenant_id,
        key_id=key_id,
        prefix=prefix,
    )
    return row is not None


async def holder(database: Database, secret_sha256: bytes) -> Holder | None:
    """Return the holder of a key; None if unknown or revoked. The caller checks the expiry at each use."""
    row = await database.fetchrow(
        f"SELECT {columns(Holder)} FROM palimpsest_across_key(:secret_sha256) WHERE revoked_at IS NULL",
        secret_sha256=secret_sha256,
    )
    return None if row is None else _decode(Holder, row)


async def store_last_used(database: Database, tenant_id: UUID, at: Mapping[UUID, datetime]) -> None:
    """Store the times at which a tenant's keys were last used."""
    await database.execute(
        "UPDATE api_keys k SET last_used_at = greatest(k.last_used_at, u.at) "
        "FROM unnest(:key_ids::uuid[], :times::timestamptz[]) AS u(key_id, at) "
        "WHERE k.tenant_id = :tenant_id AND k.key_id = u.key_id",
        tenant_id=tenant_id,
        key_ids=list(at),
        times=list(at.values()),
    )


async def any_created(database: Database) -> bool:
    """Return whether a key was ever created. Revoked keys count: revoking the last must not open the server to all."""
    row = await database.fetchrow("SELECT palimpsest_across_keys_made() AS made")
    return row is not None and bool(row["made"])


async def item_key(database: Database, tenant_id: UUID) -> bytes | None:
    """Return the key that seals a tenant's compaction items; None before its first one."""
    row = await database.fetchrow("SELECT key FROM item_keys WHERE tenant_id = :tenant_id", tenant_id=tenant_id)
    return None if row is None else bytes(row["key"])


async def make_item_key(database: Database, tenant_id: UUID, key: bytes) -> None:
    """Store the key that seals a tenant's compaction items, unless it has one."""
    await database.execute(
        "INSERT INTO item_keys (tenant_id, key) VALUES (:tenant_id, :key) ON CONFLICT DO NOTHING",
        tenant_id=tenant_id,
        key=key,
    )
