"""Webhooks and their deliveries. A trigger stores the deliveries in the transaction of a compaction's step (migration
0005); a job only names one that is due."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from app.store.deletion import EXPIRED, in_batches
from app.store.engine import Connection, Database, Executor
from app.store.rows import columns, decode

ROWS_PER_STATEMENT: Final = 1_000


@dataclass(frozen=True, slots=True)
class WebhookRow:
    """A webhook without its secret."""

    name: str
    url: str
    events: tuple[str, ...]
    created_at: datetime
    updated_at: datetime


_WEBHOOK: Final = columns(WebhookRow)


@dataclass(frozen=True, slots=True)
class DeliveryRow:
    """A delivery as it is listed."""

    id: UUID
    session: str
    type: str
    state: str
    attempts: int
    next_attempt_at: datetime | None
    status: int | None
    error: str | None
    created_at: datetime
    finished_at: datetime | None


_DELIVERIES: Final = (
    "SELECT d.id, s.external_id AS session, d.type, d.state, d.attempts, d.next_at AS next_attempt_at, d.status, "
    "d.error, d.created_at, d.finished_at FROM deliveries d JOIN sessions s ON s.session_id = d.session_id "
    "WHERE d.tenant_id = :tenant_id AND d.webhook = :webhook "
)


@dataclass(frozen=True, slots=True)
class DueDelivery:
    """A delivery to make, with its webhook's current settings."""

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
) -> tuple[WebhookRow, bool]:
    """Store a webhook; return it and whether it is new. Without a `secret`, it keeps its own or gets `fresh_secret`."""
    row = await tx.fetchrow(
        "INSERT INTO webhooks (tenant_id, name, url, events, secret, private_targets) "
        "VALUES (:tenant_id, :name, :url, :events, coalesce(:secret, :fresh_secret), :private_targets) "
        "ON CONFLICT (tenant_id, name) DO UPDATE SET "
        "url = excluded.url, events = excluded.events, secret = coalesce(:secret, webhooks.secret), "
        "private_targets = excluded.private_targets, updated_at = excluded.updated_at "
        f"RETURNING {_WEBHOOK}, xmax = 0 AS made",
        tenant_id=tenant_id,
        name=name,
        url=url,
        events=list(events),
        secret=secret,
        fresh_secret=fresh_secret,
        private_targets=private_targets,
    )
    if row is None:
        raise RuntimeError("the upsert of a webhook returned no row")
    return decode(WebhookRow, row), row["made"]


async def count_others(tx: Connection, tenant_id: UUID, name: str) -> int:
    """Count a tenant's webhooks with other names, and block new ones until the transaction ends."""
    await tx.execute("SELECT FROM tenants WHERE tenant_id = :tenant_id FOR NO KEY UPDATE", tenant_id=tenant_id)
    row = await tx.fetchrow(
        "SELECT count(*) AS n FROM webhooks WHERE tenant_id = :tenant_id AND name <> :name",
        tenant_id=tenant_id,
        name=name,
    )
    return 0 if row is None else int(row["n"])


async def find(database: Database, tenant_id: UUID, name: str) -> WebhookRow | None:
    """Return a webhook without its secret; None if there is none."""
    row = await database.fetchrow(
        f"SELECT {_WEBHOOK} FROM webhooks WHERE tenant_id = :tenant_id AND name = :name", tenant_id=tenant_id, name=name
    )
    return None if row is None else decode(WebhookRow, row)


async def page(database: Database, tenant_id: UUID, after: str, limit: int) -> list[WebhookRow]:
    """Return webhooks after the name `after`, by name, without their secrets."""
    rows = await database.fetch(
        f'SELECT {_WEBHOOK} FROM webhooks WHERE tenant_id = :tenant_id AND name COLLATE "C" > :after '
        'ORDER BY name COLLATE "C" LIMIT :limit',
        tenant_id=tenant_id,
        after=after,
        limit=limit,
    )
    return [decode(WebhookRow, row) for row in rows]


async def delete(database: Database, tenant_id: UUID, name: str) -> bool:
    """Delete a webhook with all its deliveries, including pending ones; return False if there is none."""
    row = await database.fetchrow(
        "DELETE FROM webhooks WHERE tenant_id = :tenant_id AND name = :name RETURNING name",
        tenant_id=tenant_id,
        name=name,
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
) -> list[DeliveryRow]:
    """Return a webhook's deliveries, all or those in one state, newest first."""
    created_at, id = after or (None, None)
    rows = await database.fetch(
        _DELIVERIES + "AND (:state::text IS NULL OR d.state = :state) "
        "AND (:created_at::timestamptz IS NULL OR (d.created_at, d.id) < (:created_at, :id::uuid)) "
        "ORDER BY d.created_at DESC, d.id DESC LIMIT :limit",
        tenant_id=tenant_id,
        webhook=name,
        created_at=created_at,
        id=id,
        limit=limit,
        state=state,
    )
    return [decode(DeliveryRow, row) for row in rows]


async def delivery(database: Executor, tenant_id: UUID, name: str, id: UUID) -> DeliveryRow | None:
    """Return one delivery of a webhook; None if there is none."""
    row = await database.fetchrow(_DELIVERIES + "AND d.id = :id", tenant_id=tenant_id, webhook=name, id=id)
    return None if row is None else decode(DeliveryRow, row)


async def retry(tx: Connection, tenant_id: UUID, name: str, id: UUID) -> bool:
    """Make an undelivered delivery due now; return False if there is none."""
    row = await tx.fetchrow(
        "UPDATE deliveries SET state = 'pending', attempts = 0, next_at = now(), finished_at = NULL "
        "WHERE tenant_id = :tenant_id AND webhook = :webhook AND id = :id AND state <> 'delivered' "
        "RETURNING session_id",
        tenant_id=tenant_id,
        webhook=name,
        id=id,
    )
    if row is not None:
        await _queue(tx, row["session_id"], id)
    return row is not None


async def _queue(tx: Connection, session_id: UUID, id: UUID) -> None:
    await tx.execute("SELECT palimpsest_deliver(:session_id, :id)", session_id=session_id, id=id)


async def find_due(database: Database, session_id: UUID, id: UUID) -> DueDelivery | None:
    """Return a pending delivery; None if it is done or gone."""
    row = await database.fetchrow(
        "SELECT d.body, d.attempts, w.url, w.secret, w.private_targets FROM deliveries d "
        "JOIN webhooks w ON w.tenant_id = d.tenant_id AND w.name = d.webhook "
        "WHERE d.session_id = :session_id AND d.id = :id AND d.state = 'pending'",
        session_id=session_id,
        id=id,
    )
    return None if row is None else decode(DueDelivery, row)


async def record_attempt(
    database: Database, session_id: UUID, id: UUID, *, status: int | None, error: str | None, delay: float | None
) -> float | None:
    """Record an attempt: delivered without an `error`, otherwise to be tried again after `delay` seconds, or given up.

    Return the delivery's age in seconds; None, with nothing recorded, if it was no longer pending. The same transaction
    takes the dedupe key from this attempt's job and queues the next attempt under it, so that a concurrent `retry` does
    not take the job that is ending for one that will still make an attempt.
    """
    state = "delivered" if error is None else "failed" if delay is None else "pending"
    async with database.transaction() as tx:
        pending = await tx.fetchrow(
            "UPDATE deliveries SET state = :state, attempts = attempts + 1, status = :status, error = :error, "
            "next_at = now() + make_interval(secs => :delay), finished_at = now() + make_interval(secs => :since) "
            "WHERE session_id = :session_id AND id = :id AND state = 'pending' "
            "RETURNING extract(epoch FROM coalesce(finished_at, next_at) - created_at)::float8 AS seconds",
            session_id=session_id,
            id=id,
            state=state,
            status=status,
            error=error,
            delay=delay if state == "pending" else None,
            since=None if state == "pending" else 0.0,
        )
        if pending is None:
            return None
        key = f"deliver:{id}"
        await tx.execute("UPDATE pgqueuer SET dedupe_key = NULL WHERE dedupe_key = :key AND status = 'picked'", key=key)
        if state == "pending":
            await _queue(tx, session_id, id)
            await tx.execute(
                "UPDATE pgqueuer SET execute_after = now() + make_interval(secs => :delay) "
                "WHERE dedupe_key = :key AND status = 'queued'",
                key=key,
                delay=delay,
            )
    seconds: float = pending["seconds"] - (delay or 0.0)
    return max(0.0, seconds)


async def tenant_of(database: Database, session_id: UUID, id: UUID) -> UUID | None:
    """Return the tenant of a delivery; None if it is gone."""
    row = await database.fetchrow(
        "SELECT palimpsest_across_delivery(:session_id, :id) AS tenant_id", session_id=session_id, id=id
    )
    return None if row is None else row["tenant_id"]


async def enqueue_overdue(database: Database, overdue_seconds: float) -> int:
    """Queue the deliveries that are overdue by `overdue_seconds`, whose jobs may be lost; return the number queued."""
    rows = await database.fetch(
        "SELECT palimpsest_deliver(session_id, id) FROM palimpsest_across_deliveries(:seconds, :limit)",
        seconds=overdue_seconds,
        limit=ROWS_PER_STATEMENT,
    )
    return len(rows)


async def purge(database: Database) -> int:
    """Delete deliveries that ended over a month ago; return the number deleted."""
    return await in_batches(database, EXPIRED, what="deliveries")
