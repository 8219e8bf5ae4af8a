"""Webhooks and their deliveries. Deliveries are made by the trigger that tells of a compaction's step, in its
transaction (migration 0005); a job only says that one is due."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

import asyncpg

from app.store.engine import Connection, Database

ROWS_PER_STATEMENT: Final = 1_000
_WEBHOOK: Final = "name, url, events, created_at, updated_at"
_DELIVERY: Final = (
    "d.id, s.external_id AS session, d.type, d.state, d.attempts, d.next_at AS next_attempt_at, d.status, d.error, "
    "d.created_at, d.finished_at"
)


@dataclass(frozen=True, slots=True)
class Due:
    """A delivery to be made, and what its webhook says now."""

    body: str
    attempts: int
    url: str
    secret: str
    private_targets: bool


async def put(
    tx: Connection,
    tenant_id: UUID,
    name: str,
    *,
    url: str,
    events: Sequence[str],
    secret: str | None,
    fresh_secret: str,
    private_targets: bool,
) -> asyncpg.Record | None:
    """The webhook as it is now, and in `made` whether it is new. Without `secret` it keeps its own."""
    return await tx.fetchrow(
        f"INSERT INTO webhooks (tenant_id, name, url, events, secret, private_targets) "
        f"VALUES ($1, $2, $3, $4, coalesce($5, $6), $7) ON CONFLICT (tenant_id, name) DO UPDATE SET "
        f"url = excluded.url, events = excluded.events, secret = coalesce($5, webhooks.secret), "
        f"private_targets = excluded.private_targets, updated_at = now() RETURNING {_WEBHOOK}, xmax = 0 AS made",
        tenant_id,
        name,
        url,
        list(events),
        secret,
        fresh_secret,
        private_targets,
    )


async def others(tx: Connection, tenant_id: UUID, name: str) -> int:
    """How many webhooks of other names a tenant has; nobody else adds one until the transaction ends."""
    await tx.execute("SELECT FROM tenants WHERE tenant_id = $1 FOR NO KEY UPDATE", tenant_id)
    row = await tx.fetchrow("SELECT count(*) AS n FROM webhooks WHERE tenant_id = $1 AND name <> $2", tenant_id, name)
    return 0 if row is None else int(row["n"])


async def find(database: Database, tenant_id: UUID, name: str) -> asyncpg.Record | None:
    """One webhook, without its secret."""
    return await database.fetchrow(
        f"SELECT {_WEBHOOK} FROM webhooks WHERE tenant_id = $1 AND name = $2", tenant_id, name
    )


async def page(database: Database, tenant_id: UUID, after: str, limit: int) -> list[asyncpg.Record]:
    """Webhooks by name, without their secrets."""
    return list(
        await database.fetch(
            f'SELECT {_WEBHOOK} FROM webhooks WHERE tenant_id = $1 AND name COLLATE "C" > $2 '
            f'ORDER BY name COLLATE "C" LIMIT $3',
            tenant_id,
            after,
            limit,
        )
    )


async def delete(database: Database, tenant_id: UUID, name: str) -> bool:
    """Delete a webhook with all its deliveries, also those that have not been made. Whether there was one."""
    row = await database.fetchrow(
        "DELETE FROM webhooks WHERE tenant_id = $1 AND name = $2 RETURNING name", tenant_id, name
    )
    return row is not None


async def deliveries(
    database: Database,
    tenant_id: UUID,
    name: str,
    *,
    state: str | None,
    after: tuple[datetime, UUID] | None,
    limit: int,
) -> list[asyncpg.Record]:
    """A webhook's deliveries, all or those in one state, the newest first."""
    return list(
        await database.fetch(
            f"SELECT {_DELIVERY} FROM deliveries d JOIN sessions s ON s.session_id = d.session_id "
            "WHERE d.tenant_id = $1 AND d.webhook = $2 AND ($6::text IS NULL OR d.state = $6) "
            "AND ($3::timestamptz IS NULL OR (d.created_at, d.id) < ($3, $4::uuid)) "
            "ORDER BY d.created_at DESC, d.id DESC LIMIT $5",
            tenant_id,
            name,
            *(after or (None, None)),
            limit,
            state,
        )
    )


async def delivery(database: Connection | Database, tenant_id: UUID, name: str, id: UUID) -> asyncpg.Record | None:
    """One delivery."""
    return await database.fetchrow(
        f"SELECT {_DELIVERY} FROM deliveries d JOIN sessions s ON s.session_id = d.session_id "
        "WHERE d.tenant_id = $1 AND d.webhook = $2 AND d.id = $3",
        tenant_id,
        name,
        id,
    )


async def retry(tx: Connection, tenant_id: UUID, name: str, id: UUID) -> bool:
    """Have a delivery that failed, or waits for its next attempt, made now; whether there was one."""
    row = await tx.fetchrow(
        "UPDATE deliveries SET state = 'pending', attempts = 0, next_at = now(), finished_at = NULL "
        "WHERE tenant_id = $1 AND webhook = $2 AND id = $3 AND state <> 'delivered' RETURNING session_id",
        tenant_id,
        name,
        id,
    )
    if row is not None:
        await tx.execute("SELECT palimpsest_deliver($1, $2)", row["session_id"], id)
    return row is not None


async def due(database: Database, session_id: UUID, id: UUID) -> Due | None:
    """What is to be sent; None when that is done, or gone."""
    row = await database.fetchrow(
        "SELECT d.body, d.attempts, w.url, w.secret, w.private_targets FROM deliveries d "
        "JOIN webhooks w ON w.tenant_id = d.tenant_id AND w.name = d.webhook "
        "WHERE d.session_id = $1 AND d.id = $2 AND d.state = 'pending'",
        session_id,
        id,
    )
    return None if row is None else Due(**row)


async def attempted(
    database: Database, session_id: UUID, id: UUID, *, status: int | None, error: str | None, delay: float | None
) -> None:
    """Record an attempt: delivered without an `error`, else to be tried again after `delay` seconds, or given up.

    The job that made the attempt gives up its key in the queue, and a further attempt gets a job of its own, all in one
    transaction: whoever asks for an attempt (`retry`) finds either the attempt under way or the job that waits.
    """
    state = "delivered" if error is None else "failed" if delay is None else "pending"
    async with database.transaction() as tx:
        pending = await tx.fetchrow(
            "UPDATE deliveries SET state = $3, attempts = attempts + 1, status = $4, error = $5, "
            "next_at = now() + make_interval(secs => $6), finished_at = CASE WHEN $3 <> 'pending' THEN now() END "
            "WHERE session_id = $1 AND id = $2 AND state = 'pending' RETURNING id",
            session_id,
            id,
            state,
            status,
            error,
            delay if state == "pending" else None,
        )
        if pending is None:
            return
        key = f"deliver:{id}"
        await tx.execute("UPDATE pgqueuer SET dedupe_key = NULL WHERE dedupe_key = $1 AND status = 'picked'", key)
        if state == "pending":
            await tx.execute("SELECT palimpsest_deliver($1, $2)", session_id, id)
            await tx.execute(
                "UPDATE pgqueuer SET execute_after = now() + make_interval(secs => $2) "
                "WHERE dedupe_key = $1 AND status = 'queued'",
                key,
                delay,
            )


async def tenant_of(database: Database, session_id: UUID, id: UUID) -> UUID | None:
    """Whose delivery it is; None of one that is gone."""
    row = await database.fetchrow("SELECT palimpsest_across_delivery($1, $2) AS tenant_id", session_id, id)
    return None if row is None else row["tenant_id"]


async def wake_forgotten(database: Database, overdue_seconds: float) -> int:
    """Queue every delivery that should have been tried a while ago, in case the job for it was lost. How many."""
    rows = await database.fetch(
        "SELECT palimpsest_deliver(session_id, id) FROM palimpsest_across_deliveries($1, $2)",
        overdue_seconds,
        ROWS_PER_STATEMENT,
    )
    return len(rows)
