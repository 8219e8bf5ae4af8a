"""Deletion of sessions with everything that shares their events, and purges of expired rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from app.core.errors import Conflict, OutsidePrefix, SessionErased
from app.core.log.segments import is_line, session_of
from app.store.engine import Connection, Database, Executor, acting_for
from app.store.ids import SessionRef, session_ref
from app.store.log import STREAM_CHANNEL
from app.store.rows import decode
from app.store.sessions import lock

WITHOUT_KEYS: Final = ("model_calls", "changes", "change_counts", "deliveries")
"""Tables of a session's data without a foreign key to it. Their rows are deleted after it, when none can be added."""


async def lock_family(
    tx: Connection, tenant_id: UUID, external_id: str, *, seq: int = 0, lines: bool = False
) -> list[str]:
    """Return a session and its descendants that share its event `seq`, parents first; empty if it is missing.

    `lines` adds all lines of each, which may share nothing. All are locked until the transaction ends, each before its
    forks are read: a fork is created under the same lock on its parent.
    """
    found: list[str] = []
    rest = [external_id]
    while rest:
        name = rest.pop(0)
        if name in found or await lock(tx, session_ref(tenant_id, name)) is None:
            continue
        found.append(name)
        if lines:
            others = await tx.fetch(
                "SELECT external_id FROM sessions WHERE root = :session_id AND tenant_id = :tenant_id ORDER BY number",
                **session_ref(tenant_id, name)._asdict(),
            )
            rest += [row["external_id"] for row in others]
        forks = await tx.fetch(
            "SELECT external_id FROM sessions WHERE tenant_id = :tenant_id AND parent = :parent AND parent_at >= :seq "
            "ORDER BY external_id",
            tenant_id=tenant_id,
            parent=name,
            seq=seq,
        )
        rest += [row["external_id"] for row in forks]
    return found


async def erase_session(
    database: Database, tenant_id: UUID, external_id: str, *, forks: bool = False, prefix: str = ""
) -> list[UUID]:
    """Delete a session with its lines and all their data; return the ids of the deleted rows, none if it is missing.

    Its forks cannot be read without it: they are deleted too if `forks`, otherwise Conflict is raised. Raises
    OutsidePrefix if one of the names does not begin with `prefix`, and Conflict for a single line.
    """
    if is_line(external_id):
        raise Conflict(f"a line is erased with its session {session_of(external_id)!r} only", session=external_id)
    async with database.transaction() as tx:
        names = await lock_family(tx, tenant_id, external_id, lines=True)
        if not all(name.startswith(prefix) for name in names):
            raise OutsidePrefix(f"session {external_id!r} shares its events with sessions that this key is not for")
        shared = [name for name in names if session_of(name) != external_id]
        if shared and not forks:
            others = f"{shared[0]!r}" + (f" and {len(shared) - 1} more" if len(shared) > 1 else "")
            detail = f"session {external_id!r} shares its events with {others}; erase them with it, or before it"
            raise Conflict(detail, session=external_id, forks=shared)
        return await delete_locked(tx, tenant_id, names)


async def delete_locked(tx: Connection, tenant_id: UUID, names: Sequence[str]) -> list[UUID]:
    """Delete sessions and lines locked by `lock_family`, and all their data; return their ids."""
    refs = [session_ref(tenant_id, name) for name in reversed(names)]
    for ref in refs:
        await _delete_row(tx, ref)
    return [ref.session_id for ref in refs]


async def _delete_row(tx: Connection, ref: SessionRef) -> None:
    await tx.execute(f"SET LOCAL palimpsest.erasing = '{ref.session_id}'")
    erased = await tx.fetchrow(
        "DELETE FROM sessions WHERE session_id = :session_id AND tenant_id = :tenant_id RETURNING streamed_until",
        **ref._asdict(),
    )
    if erased is not None:
        await tx.execute(
            f"SELECT pg_notify('{STREAM_CHANNEL}', :session) WHERE :streamed_until::timestamptz > now()",
            session=str(ref.session_id),
            streamed_until=erased["streamed_until"],
        )
    deliveries = await tx.fetch(
        "SELECT id FROM deliveries WHERE session_id = :session_id AND tenant_id = :tenant_id AND state <> 'delivered'",
        **ref._asdict(),
    )
    await tx.execute(
        "DELETE FROM pgqueuer WHERE dedupe_key = ANY(:jobs::text[]) AND status <> 'picked'",
        jobs=[f"compact:{ref.session_id}", f"index:{ref.session_id}", *(f"deliver:{row['id']}" for row in deliveries)],
    )
    for table in WITHOUT_KEYS:
        await tx.execute(
            f"DELETE FROM {table} WHERE session_id = :session_id AND tenant_id = :tenant_id", **ref._asdict()
        )


async def admit_name(tx: Connection, tenant_id: UUID, name: str, *, has_metadata: bool) -> None:
    """Admit a session that this transaction has created. Raises SessionErased for an erased name without metadata.

    Under the name of an erased session it needs metadata, by which it can be erased again; the name then no longer
    counts as erased. Call this after the creation: creating a session while it is being erased waits for the erasure.
    """
    of_name = session_ref(tenant_id, name)._asdict()
    where = "WHERE session_id = :session_id AND tenant_id = :tenant_id"
    if has_metadata:
        await tx.execute(f"DELETE FROM erased_names {where}", **of_name)
    elif await tx.fetchrow(f"SELECT FROM erased_names {where}", **of_name) is not None:
        raise SessionErased(
            f"session {name!r} was erased on request: to begin again under this name, create it with "
            f"PUT /v1/sessions/{name} and metadata, by which it can be found for another erasure; or use another name",
            session=name,
        )


async def redact_terms(tx: Connection, ref: SessionRef, seq: int) -> None:
    """Remove an event from the search index, including one that another transaction is adding.

    The row of `search_heads` is the lock for changes of a session's index. A new one is of version 0, which the first
    search replaces.
    """
    await tx.execute(
        "INSERT INTO search_heads (session_id, tenant_id, version) SELECT session_id, tenant_id, 0 FROM sessions "
        "WHERE session_id = :session_id AND tenant_id = :tenant_id FOR KEY SHARE "
        "ON CONFLICT (session_id) DO UPDATE SET head = search_heads.head",
        **ref._asdict(),
    )
    await tx.execute(
        "WITH gone AS (DELETE FROM search WHERE session_id = :session_id AND seq = :seq RETURNING length) "
        "UPDATE search_heads SET entries = entries - 1, length = search_heads.length - gone.length FROM gone "
        "WHERE session_id = :session_id",
        session_id=ref.session_id,
        seq=seq,
    )


ROWS_PER_STATEMENT: Final = 1000
_PURGE: Final = """
WITH deleted AS (DELETE FROM {table} WHERE id IN (SELECT id FROM {table} WHERE {due} LIMIT :limit) RETURNING id)
SELECT count(*) AS gone FROM deleted
"""
_JOB_LOG: Final = _PURGE.format(table="pgqueuer_log", due="created < now() - interval '1 day' ORDER BY created")
_DEAD_JOBS: Final = _PURGE.format(
    table="pgqueuer",
    due="status NOT IN ('queued', 'picked') AND updated < now() - interval '30 days' ORDER BY updated",
)
EXPIRED: Final = "SELECT palimpsest_across_purge(:what, :limit) AS gone"
"""Delete expired rows of the table `what`, of all tenants."""


async def purge_idempotency_keys(database: Database) -> int:
    """Delete idempotency keys older than a day; return the number deleted."""
    return await in_batches(database, EXPIRED, what="appends")


async def purge_job_log(database: Database) -> int:
    """Delete the queue's log of jobs older than a day, which nothing reads; return the number of rows deleted."""
    return await in_batches(database, _JOB_LOG)


async def in_batches(database: Database, sql: str, **values: object) -> int:
    """Delete in batches that lock few rows, oldest first; return the number of rows deleted."""
    purged = 0
    while True:
        row = await database.fetchrow(sql, **values, limit=ROWS_PER_STATEMENT)
        gone = 0 if row is None else int(row["gone"])
        purged += gone
        if gone < ROWS_PER_STATEMENT:
            return purged


async def purge_calls(database: Database) -> int:
    """Delete expired records of calls, of all tenants; return the number deleted."""
    purged = 0
    while True:
        rows = await database.fetch(
            "SELECT tenant_id, session_id, call_id AS id, used_at FROM palimpsest_across_expired(:limit)",
            limit=ROWS_PER_STATEMENT,
        )
        for tenant_id in dict.fromkeys(row["tenant_id"] for row in rows):
            with acting_for(tenant_id):
                own = [decode(ExpiredCall, row) for row in rows if row["tenant_id"] == tenant_id]
                purged += await delete_calls(database, tenant_id, own)
        if len(rows) < ROWS_PER_STATEMENT:
            return purged


async def purge_dead_jobs(database: Database) -> int:
    """Delete jobs that the queue gave up a month ago; return the number deleted."""
    return await in_batches(database, _DEAD_JOBS)


@dataclass(frozen=True, slots=True)
class ExpiredCall:
    """The key of a call's record; `used_at` is the last use of its session that the record proves."""

    session_id: UUID
    id: UUID
    used_at: datetime


async def delete_calls(database: Database, tenant_id: UUID, calls: Sequence[ExpiredCall]) -> int:
    """Delete records of calls; return the number deleted. The session keeps the time of its last deleted call."""
    last = dict(sorted((one.session_id, one.used_at) for one in calls))
    for session_id, used_at in last.items():
        await _record_use(database, SessionRef(session_id, tenant_id), used_at)
    async with database.transaction() as tx:
        await tx.execute("SET LOCAL palimpsest.sweeping = 'calls'")  # or their trigger refuses it (migration 0021)
        rows = await tx.fetch(
            "DELETE FROM model_calls t USING unnest(:session_ids::uuid[], :ids::uuid[]) AS o(session_id, id) "
            "WHERE t.session_id = o.session_id AND t.call_id = o.id AND t.tenant_id = :tenant_id "
            "RETURNING t.session_id",
            session_ids=[one.session_id for one in calls],
            ids=[one.id for one in calls],
            tenant_id=tenant_id,
        )
    return len(rows)


async def _record_use(database: Executor, ref: SessionRef, used_at: datetime) -> None:
    """Record when a session was used, in a transaction of its own: one that locked several sessions could deadlock with
    an erasure that locks them in another order."""
    await database.execute(
        "UPDATE sessions SET called_at = :used_at WHERE session_id = :session_id AND tenant_id = :tenant_id "
        "AND updated_at < :used_at AND (called_at IS NULL OR called_at < :used_at)",
        **ref._asdict(),
        used_at=used_at,
    )
