"""Runs of compaction: what was asked for, what became of it. The queue only says that a session has work."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

import asyncpg

from app.store.engine import Connection, Database

OPEN: Final = "('scheduled', 'running')"


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """How a run ended. `state`: succeeded, skipped or failed; `error` says why it did not succeed."""

    state: str
    error: str | None = None
    summaries: tuple[UUID, ...] = ()
    from_seq: int | None = None
    to_seq: int | None = None
    tokens_read: int = 0
    tokens_before: int = 0
    tokens_after: int = 0


@dataclass(frozen=True, slots=True)
class WaitingContext:
    """The context that waits for a run: of which view, in which window, under which policy.

    `tightened`: its window is a part of the view's own, for it is to fit where an earlier one did not.
    """

    view: str
    window_tokens: int
    policy: tuple[str, int]
    tightened: bool = False


async def schedule(
    tx: Connection,
    session_id: UUID,
    tenant_id: UUID,
    id: UUID,
    reason: str,
    *,
    focus: str | None = None,
    wanted: WaitingContext | None = None,
) -> None:
    """Ask for a run, and wake a worker when the transaction ends."""
    await _lock(tx, session_id)
    await tx.execute(
        "INSERT INTO compactions (session_id, tenant_id, id, state, reason, focus, view, window_tokens, policy_name, "
        "policy_version) VALUES ($1, $2, $3, 'scheduled', $4, $5, $6, $7, $8, $9)",
        session_id,
        tenant_id,
        id,
        reason,
        focus,
        *((wanted.view, wanted.window_tokens, *wanted.policy) if wanted else (None, None, None, None)),
    )
    await wake(tx, session_id, tenant_id)


async def wake(connection: Connection | Database, session_id: UUID, tenant_id: UUID) -> None:
    """Let a worker look at a session, unless one is about to."""
    await connection.execute(
        "WITH s AS (SELECT FROM sessions WHERE session_id = $1 FOR NO KEY UPDATE) "
        "SELECT palimpsest_compact($1, $2) FROM s",
        session_id,
        tenant_id,
    )


@dataclass(frozen=True, slots=True)
class Demand:
    """What a worker looks at a session for: its head, the smallest window of its views, and what has been reported of
    their calls: the last of them, and how often that taught something."""

    head: int
    narrowest_tokens: int | None
    last_reported: str | None
    learned: int


DEMAND_OF_VIEWS: Final = """
    (SELECT min(window_tokens) FROM views WHERE session_id = $1) AS narrowest_tokens,
    (SELECT max(reported_call::text) FROM views WHERE session_id = $1) AS last_reported,
    (SELECT coalesce(sum(learned_version), 0) FROM views WHERE session_id = $1) AS learned"""


def demand(row: asyncpg.Record) -> Demand:
    """Of a session's row with DEMAND_OF_VIEWS."""
    return Demand(row["head"], row["narrowest_tokens"], row["last_reported"], row["learned"])


async def _lock(tx: Connection, session_id: UUID) -> Demand | None:
    """The demand of a session; None if there is none. Whoever makes work for a worker holds its session's row."""
    row = await tx.fetchrow("SELECT FROM sessions WHERE session_id = $1 FOR NO KEY UPDATE", session_id)
    if row is None:
        return None
    now = await tx.fetchrow(f"SELECT head, {DEMAND_OF_VIEWS} FROM sessions WHERE session_id = $1", session_id)
    return None if now is None else demand(now)


async def let_go(tx: Connection, session_id: UUID, job_id: int, seen: Demand | None) -> bool:
    """Let the next job of a session be queued, now that this one is through; False when there is more to look at.

    What is appended or asked for while a job runs queues no other one, so that is looked for before it ends, under the
    lock that all of them hold.
    """
    now = await _lock(tx, session_id)
    if now is not None and (seen not in (None, now) or await waiting(tx, session_id)):
        return False
    await tx.execute("UPDATE pgqueuer SET dedupe_key = NULL WHERE id = $1", job_id)
    return True


async def waiting(connection: Connection | Database, session_id: UUID) -> list[asyncpg.Record]:
    """The runs of a session that have not ended, oldest first. A running one was left behind by a worker that died."""
    return list(
        await connection.fetch(
            "SELECT id, reason, focus, attempts, view, window_tokens, policy_name, policy_version FROM compactions "
            f"WHERE session_id = $1 AND state IN {OPEN} ORDER BY created_at, id",
            session_id,
        )
    )


async def begin(
    connection: Connection | Database, session_id: UUID, tenant_id: UUID, id: UUID, reason: str, tokens_before: int
) -> None:
    """A run begins, whether it was asked for or not; `tokens_before` are the main view's."""
    await connection.execute(
        "INSERT INTO compactions (session_id, tenant_id, id, state, reason, started_at, tokens_before) "
        "VALUES ($1, $2, $3, 'running', $4, now(), $5) ON CONFLICT (session_id, id) DO UPDATE SET state = 'running', "
        "started_at = coalesce(compactions.started_at, now()), "
        "tokens_before = CASE WHEN compactions.state = 'running' THEN compactions.tokens_before ELSE $5 END "
        "WHERE compactions.state IN ('scheduled', 'running')",
        session_id,
        tenant_id,
        id,
        reason,
        tokens_before,
    )


async def put_off(connection: Connection | Database, session_id: UUID, id: UUID, error: str) -> int:
    """A run could not be made now; how often that has been so."""
    row = await connection.fetchrow(
        "UPDATE compactions SET state = 'scheduled', attempts = attempts + 1, error = $3 "
        "WHERE session_id = $1 AND id = $2 RETURNING attempts",
        session_id,
        id,
        error,
    )
    return 0 if row is None else int(row["attempts"])


async def end(connection: Connection | Database, session_id: UUID, ids: Sequence[UUID], outcome: RunOutcome) -> None:
    """What becomes of runs that have not ended yet."""
    await connection.execute(
        f"UPDATE compactions SET state = $3, error = $4, summaries = $5, from_seq = $6, to_seq = $7, tokens_read = $8, "
        f"tokens_before = $9, tokens_after = $10, finished_at = now() "
        f"WHERE session_id = $1 AND id = ANY($2) AND state IN {OPEN}",
        session_id,
        list(ids),
        outcome.state,
        outcome.error,
        list(outcome.summaries),
        outcome.from_seq,
        outcome.to_seq,
        outcome.tokens_read,
        outcome.tokens_before,
        outcome.tokens_after,
    )


async def cools_down(database: Database, session_id: UUID, seconds: float, seconds_max: float) -> bool:
    """Whether a session's last run failed just now: after each failure in a row, twice as long as after the one before,
    nothing is tried that nobody asks for."""
    row = await database.fetchrow(
        "WITH good AS (SELECT max(finished_at) AS at FROM compactions WHERE session_id = $1 AND state = 'succeeded'), "
        "bad AS (SELECT count(*) AS n, max(finished_at) AS at FROM compactions c, good WHERE c.session_id = $1 "
        "AND c.state = 'failed' AND c.reason <> 'redo' AND (good.at IS NULL OR c.finished_at > good.at)) "
        "SELECT n > 0 AND at > now() - make_interval(secs => least($2 * 2 ^ least(n - 1, 30), $3)) AS cools FROM bad",
        session_id,
        seconds,
        seconds_max,
    )
    return bool(row and row["cools"])


_LISTED: Final = (
    "id, state, reason, focus, attempts, error, from_seq, to_seq, summaries, tokens_read, tokens_before, "
    "tokens_after, created_at, started_at, finished_at, cardinality(summaries) AS batches_created, "
    "(SELECT coalesce(sum(s.events), 0) FROM summaries s WHERE s.session_id = compactions.session_id "
    "AND s.id = ANY(compactions.summaries) AND s.depth = 0) AS messages_compressed"
)


async def find(database: Database, session_id: UUID, id: UUID) -> asyncpg.Record | None:
    """One run."""
    return await database.fetchrow(
        f"SELECT {_LISTED} FROM compactions WHERE session_id = $1 AND id = $2", session_id, id
    )


async def page(
    database: Database, session_id: UUID, *, state: str | None, after: tuple[datetime, UUID] | None, limit: int
) -> list[asyncpg.Record]:
    """Runs, all or those in one state, the newest first."""
    return list(
        await database.fetch(
            f"SELECT {_LISTED} FROM compactions WHERE session_id = $1 "
            "AND ($2::timestamptz IS NULL OR (created_at, id) < ($2, $3::uuid)) AND ($5::text IS NULL OR state = $5) "
            "ORDER BY created_at DESC, id DESC LIMIT $4",
            session_id,
            *(after or (None, None)),
            limit,
            state,
        )
    )


async def retry(tx: Connection, session_id: UUID, tenant_id: UUID, id: UUID) -> bool:
    """Schedule a failed or skipped run again; whether there was one."""
    await _lock(tx, session_id)
    row = await tx.fetchrow(
        "UPDATE compactions SET state = 'scheduled', attempts = 0, finished_at = NULL "
        "WHERE session_id = $1 AND id = $2 AND state IN ('failed', 'skipped') RETURNING id",
        session_id,
        id,
    )
    if row is not None:
        await wake(tx, session_id, tenant_id)
    return row is not None


async def wake_forgotten(database: Database, older_than_seconds: float) -> int:
    """Wake a worker for every session with a run that has waited long, in case the job for it was lost."""
    rows = await database.fetch(
        "SELECT palimpsest_compact(session_id, tenant_id) AS woken FROM palimpsest_across_compactions($1)",
        older_than_seconds,
    )
    return sum(bool(row["woken"]) for row in rows)
