"""Policies: immutable rows, a new version for every change."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import asyncpg

from app.core.log.events import Json, canonical_json
from app.store.engine import Connection, Database


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """A version of a policy, its document as it was given; `created_at` is None for what comes with the server."""

    name: str
    version: int
    document: Mapping[str, Json]
    created_at: datetime | None


async def lock(tx: Connection, tenant_id: UUID) -> None:
    """Until the transaction ends, nobody else adds a version to a policy of this tenant."""
    await tx.execute("SELECT FROM tenants WHERE tenant_id = $1 FOR NO KEY UPDATE", tenant_id)


async def find(
    connection: Connection | Database, tenant_id: UUID, name: str, version: int | None = None
) -> PolicyRow | None:
    """A version of a policy, or its newest one; None if there is no such."""
    row = await connection.fetchrow(
        "SELECT name, version, document, created_at FROM policies "
        "WHERE tenant_id = $1 AND name = $2 AND ($3::int IS NULL OR version = $3) ORDER BY version DESC LIMIT 1",
        tenant_id,
        name,
        version,
    )
    return None if row is None else _row(row)


async def page(database: Database, tenant_id: UUID, limit: int, after: str, unlisted: str) -> list[PolicyRow]:
    """The newest version of each policy named after `after`, by name, without names that begin with `unlisted`."""
    rows = await database.fetch(
        'SELECT DISTINCT ON (name COLLATE "C") name, version, document, created_at FROM policies '
        'WHERE tenant_id = $1 AND name COLLATE "C" > $2 AND NOT starts_with(name, $3) '
        'ORDER BY name COLLATE "C", version DESC LIMIT $4',
        tenant_id,
        after,
        unlisted,
        limit,
    )
    return [_row(row) for row in rows]


async def add(
    connection: Connection | Database, tenant_id: UUID, name: str, version: int, document: Mapping[str, Json]
) -> PolicyRow | None:
    """Store a version; None, and nothing stored, when there is one of that number."""
    row = await connection.fetchrow(
        "INSERT INTO policies (tenant_id, name, version, document) VALUES ($1, $2, $3, $4) "
        "ON CONFLICT DO NOTHING RETURNING name, version, document, created_at",
        tenant_id,
        name,
        version,
        canonical_json(document),
    )
    return None if row is None else _row(row)


def _row(row: asyncpg.Record) -> PolicyRow:
    return PolicyRow(row["name"], row["version"], json.loads(row["document"]), row["created_at"])
