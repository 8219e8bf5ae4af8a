"""Policies: immutable rows, a new version for every change."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

import asyncpg

from app.core.log.events import Json, canonical_json
from app.store.engine import Connection, Database, Executor
from app.store.rows import columns, decode


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """A version of a policy, with its document as given; `created_at` is None for a preset."""

    name: str
    version: int
    document: Mapping[str, Json]
    created_at: datetime | None

    @property
    def preset(self) -> bool:
        """Whether the policy comes with the server."""
        return self.created_at is None


_COLUMNS: Final = columns(PolicyRow)


def _row(row: asyncpg.Record) -> PolicyRow:
    return decode(PolicyRow, row, document=json.loads(row["document"]))


async def lock(tx: Connection, tenant_id: UUID) -> None:
    """Lock a tenant's policies against new versions until the transaction ends."""
    await tx.execute("SELECT FROM tenants WHERE tenant_id = :tenant_id FOR NO KEY UPDATE", tenant_id=tenant_id)


async def find(connection: Executor, tenant_id: UUID, name: str, version: int | None = None) -> PolicyRow | None:
    """Return a version of a policy, by default the newest; None if there is none."""
    row = await connection.fetchrow(
        f"SELECT {_COLUMNS} FROM policies WHERE tenant_id = :tenant_id AND name = :name "
        "AND (:version::int IS NULL OR version = :version) ORDER BY version DESC LIMIT 1",
        tenant_id=tenant_id,
        name=name,
        version=version,
    )
    return None if row is None else _row(row)


async def page(database: Database, tenant_id: UUID, limit: int, after: str, unlisted: str) -> list[PolicyRow]:
    """Return the newest version of each policy after `after`, by name, omitting names that begin with `unlisted`."""
    rows = await database.fetch(
        f'SELECT DISTINCT ON (name COLLATE "C") {_COLUMNS} FROM policies '
        'WHERE tenant_id = :tenant_id AND name COLLATE "C" > :after AND NOT starts_with(name, :unlisted) '
        'ORDER BY name COLLATE "C", version DESC LIMIT :limit',
        tenant_id=tenant_id,
        after=after,
        unlisted=unlisted,
        limit=limit,
    )
    return [_row(row) for row in rows]


async def add(
    connection: Executor, tenant_id: UUID, name: str, version: int, document: Mapping[str, Json]
) -> PolicyRow | None:
    """Store a version of a policy; return None, and store nothing, if that version exists."""
    row = await connection.fetchrow(
        "INSERT INTO policies (tenant_id, name, version, document) VALUES (:tenant_id, :name, :version, :document) "
        f"ON CONFLICT DO NOTHING RETURNING {_COLUMNS}",
        tenant_id=tenant_id,
        name=name,
        version=version,
        document=canonical_json(document),
    )
    return None if row is None else _row(row)
