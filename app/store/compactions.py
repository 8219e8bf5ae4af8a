"""Compaction runs: their requests and outcomes. The queue only records that a session has work."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final
from uuid import UUID

import asyncpg

from app.store import jobs, texts
from app.store.engine import Connection, Database, Executor
from app.store.ids import SessionRef
from app.store.rows import columns, decode, parameters
from app.tracing import tracer

OPEN: Final = "('scheduled', 'running')"
REQUESTED: Final = "requested"
"""The reason of a run that a client requested."""
REQUESTED_COLUMNS: Final = f"""
    coalesce((SELECT max(c.to_seq) FROM compactions c WHERE c.session_id = :session_id AND c.reason = '{REQUESTED}'
              AND c.state IN ('succeeded', 'skipped')), 0) AS requested_to,
    (SELECT CASE WHEN c.reason = '{REQUESTED}' AND c.state = 'failed' THEN c.error END FROM compactions c
     WHERE c.session_id = :session_id AND c.finished_at IS NOT NULL ORDER BY c.finished_at DESC LIMIT 1)
        AS requested_error"""
"""SQL columns: the last seq summarized on request, and the error of the last run if that failed on request."""

QUEUED: Final = """
              OR EXISTS (SELECT FROM pgqueuer q WHERE q.dedupe_key = 'compact:' || :session_id::uuid
                         AND q.status IN ('queued', 'picked'))"""
"""SQL condition in COMPACTION_STATE: a job of the session is queued or running."""
COMPACTION_STATE: Final = f"""
    CASE WHEN EXISTS (SELECT FROM compactions c WHERE c.session_id = :session_id AND c.state = 'running') THEN 'running'
         WHEN EXISTS (SELECT FROM compactions c WHERE c.session_id = :session_id AND c.state = 'scheduled'){QUEUED}
              THEN 'scheduled'
         WHEN (SELECT c.state FROM compactions c WHERE c.session_id = :session_id AND c.reason <> 'redo'
               AND c.state IN ('succeeded', 'failed') ORDER BY c.finished_at DESC LIMIT 1) = 'failed' THEN 'failed'
         ELSE 'none' END"""
"""SQL of a session's compaction state: running, scheduled, failed (the last run) or none."""


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The outcome of a run. `state` is succeeded, skipped or failed.

    `error` says why it did not succeed, or why the newest summary is degraded.
    """

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
    """A context that waits for a run: its view, window and policy. `tightened`: the window is the smaller one with
    which a refused call is retried."""

    view: str
    window_tokens: int
    policy: tuple[str, int]
    tightened: bool = False


SCHEDULE: Final = (
    "INSERT INTO compactions (session_id, tenant_id, id, state, reason, focus, view, window_tokens, "
    "policy_name, policy_version) VALUES (:session_id, :tenant_id, :id, 'scheduled', :reason, :focus, :view, "
    ":window_tokens, :policy_name, :policy_version) ON CONFLICT (session_id, id) DO NOTHING"
)


async def schedule(
    tx: Connection,
    ref: SessionRef,
    id: UUID,
    reason: str,
    *,
    focus: str | None = None,
    context: WaitingContext | None = None,
) -> None:
    """Schedule a run unless it exists, and wake a worker when the transaction ends. A requested run does not
    wait for a provider that asked for a delay (`jobs.make_due`)."""
    await _lock(tx, ref.session_id)
    policy_name, policy_version = context.policy if context else (None, None)
    status = await tx.execute(
        SCHEDULE,
        **ref._asdict(),
        id=id,
        reason=reason,
        focus=None if focus is None else texts.seal_text(focus),
        view=context.view if context else None,
        window_tokens=context.window_tokens if context else None,
        policy_name=policy_name,
        policy_version=policy_version,
    )
    if status != "INSERT 0 0":
        await enqueue(tx, ref)
        if reason == REQUESTED:
            await jobs.make_due(tx, ref.session_id)


async def schedule_requested(tx: Connection, ref: SessionRef, id: UUID) -> None:
    """Schedule a run that a client requested, unless such a run without a focus is scheduled or running."""
    await _lock(tx, ref.session_id)
    if not any(one.reason == REQUESTED and one.focus is None for one in await open_runs(tx, ref.session_id)):
        await schedule(tx, ref, id, REQUESTED)


ENQUEUE: Final = (
    "WITH s AS (SELECT FROM sessions WHERE session_id = :session_id FOR NO KEY UPDATE) "
    "SELECT palimpsest_compact(:session_id, :tenant_id) AS queued FROM s"
)


async def enqueue(connection: Executor, ref: SessionRef) -> None:
    """Queue a job for a session, unless one is queued."""
    row = await connection.fetchrow(ENQUEUE, **ref._asdict())
    if row is not None and row["queued"]:
        await jobs.store_trace_context(connection, ref.session_id, tracer.get().link_headers())


@dataclass(frozen=True, slots=True)
class CompactionDemand:
    """The state of a session on which its need for compaction depends: its head and tokens, the smallest window of its
    views, their last reported call, and the sum of their learned versions. `settings` tells apart states with other
    policies, models, visibility decisions or redactions."""

    head: int
    tokens: int
    narrowest_tokens: int | None
    last_reported: str | None
    learned: int
    settings: str


DEMAND_COLUMNS: Final = """
    head, tokens, concat_ws(' ', policy_name, policy_version, model, decisions, redactions, (
        SELECT string_agg(concat_ws(' ', view, policy_name, policy_version, model), ' ' ORDER BY view)
        FROM views WHERE session_id = :session_id)) AS settings,
    (SELECT min(window_tokens) FROM views WHERE session_id = :session_id) AS narrowest_tokens,
    (SELECT max(reported_call::text) FROM views WHERE session_id = :session_id) AS last_reported,
    (SELECT coalesce(sum(learned_version), 0) FROM views WHERE session_id = :session_id) AS learned"""


async def _lock(tx: Connection, session_id: UUID) -> None:
    """Lock a session's row, as everything that queues work does."""
    await tx.fetchrow(
        "SELECT session_id FROM sessions WHERE session_id = :session_id FOR NO KEY UPDATE", session_id=session_id
    )


async def release_session(
    tx: Connection, session_id: UUID, job_id: int, demand: CompactionDemand | None, idle_tokens: int = 0
) -> bool:
    """Allow the session's next job to be queued; return False if the current job has more to do.

    During a job, appends and requests queue no other one; they are found here, under the lock that they also take. The
    job is done if no run is open (scheduled or running) and the session is as in `demand`, or has only grown and
    still has less than `idle_tokens` tokens. If `demand` is None, only open runs count.
    """
    await _lock(tx, session_id)
    row = await tx.fetchrow(
        f"SELECT {DEMAND_COLUMNS}, EXISTS (SELECT FROM compactions WHERE session_id = :session_id "
        f"AND state IN {OPEN}) AS has_open FROM sessions WHERE session_id = :session_id",
        session_id=session_id,
    )
    if row is not None and row["has_open"]:
        return False
    if row is not None and demand is not None:
        now = decode(CompactionDemand, row)
        if now != demand and (now.tokens >= idle_tokens or now != replace(demand, head=now.head, tokens=now.tokens)):
            return False
    await jobs.release_key(tx, job_id)
    return True


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run that is scheduled or running, and the context that waits for it, if any."""

    id: UUID
    reason: str
    focus: str | None
    context: WaitingContext | None


async def open_runs(connection: Executor, session_id: UUID) -> list[OpenRun]:
    """Return a session's open runs, oldest first. One `running` at a job's start has lost its worker."""
    rows = await connection.fetch(
        "SELECT id, reason, focus, view, window_tokens, policy_name, policy_version FROM compactions "
        f"WHERE session_id = :session_id AND state IN {OPEN} ORDER BY created_at, id",
        session_id=session_id,
    )
    return [OpenRun(row["id"], row["reason"], _focus(row), _context(row)) for row in rows]


def _focus(row: asyncpg.Record) -> str | None:
    return None if row["focus"] is None else texts.open_text(row["focus"])


def _context(row: asyncpg.Record) -> WaitingContext | None:
    if row["view"] is None:
        return None
    policy = (row["policy_name"], row["policy_version"])
    return WaitingContext(row["view"], row["window_tokens"], policy, tightened=row["reason"] == "overflow")


BEGIN: Final = (
    "INSERT INTO compactions (session_id, tenant_id, id, state, reason, started_at, tokens_before) "
    "VALUES (:session_id, :tenant_id, :id, 'running', :reason, now(), :tokens_before) "
    "ON CONFLICT (session_id, id) DO UPDATE SET state = 'running', "
    "started_at = coalesce(compactions.started_at, excluded.started_at), tokens_before = "
    "CASE WHEN compactions.state = 'running' THEN compactions.tokens_before ELSE :tokens_before END "
    f"WHERE compactions.state IN {OPEN}"
)


async def begin(connection: Executor, ref: SessionRef, id: UUID, reason: str, tokens_before: int) -> None:
    """Record the start of a run, scheduled before or not; `tokens_before` is the main view's."""
    await connection.execute(BEGIN, **ref._asdict(), id=id, reason=reason, tokens_before=tokens_before)


RESCHEDULE: Final = (
    "UPDATE compactions SET state = 'scheduled', attempts = attempts + 1, error = :error "
    "WHERE session_id = :session_id AND id = :id RETURNING attempts"
)


async def reschedule(connection: Executor, session_id: UUID, id: UUID, error: str) -> int:
    """Schedule a run again after a failed attempt; return the number of its failed attempts."""
    row = await connection.fetchrow(RESCHEDULE, session_id=session_id, id=id, error=error)
    return 0 if row is None else int(row["attempts"])


END: Final = (
    "WITH s AS (SELECT session_id FROM sessions WHERE session_id = :session_id FOR NO KEY UPDATE), ended AS ("
    "UPDATE compactions c SET state = :state, error = :error, summaries = :summaries, from_seq = :from_seq, "
    "to_seq = :to_seq, tokens_read = :tokens_read, tokens_before = :tokens_before, "
    "tokens_after = :tokens_after, finished_at = now() FROM s "
    "WHERE c.session_id = s.session_id AND c.session_id = :session_id AND c.id = ANY(:ids) "
    f"AND c.state IN {OPEN} RETURNING c.session_id, c.reason) "
    "UPDATE sessions SET version = version + 1 WHERE session_id = :session_id "
    f"AND EXISTS (SELECT FROM ended e WHERE e.session_id = :session_id AND e.reason = '{REQUESTED}')"
)


async def end(connection: Executor, session_id: UUID, ids: Sequence[UUID], outcome: RunOutcome) -> None:
    """Record the outcome of open runs. A requested run changes its views' next contexts, so it
    raises the session's version: held views are read again."""
    await connection.execute(END, session_id=session_id, ids=list(ids), **parameters(outcome))


async def in_cooldown(database: Database, session_id: UUID, seconds: float, seconds_max: float) -> bool:
    """Return whether a session pauses unrequested runs after failures: for `seconds` after the first, doubled with each
    further consecutive failure up to `seconds_max`."""
    row = await database.fetchrow(
        "WITH good AS (SELECT max(finished_at) AS at FROM compactions "
        "WHERE session_id = :session_id AND state = 'succeeded'), "
        "bad AS (SELECT count(*) AS n, max(finished_at) AS at FROM compactions c, good "
        "WHERE c.session_id = :session_id AND c.state = 'failed' AND c.reason <> 'redo' "
        "AND (good.at IS NULL OR c.finished_at > good.at)) "
        "SELECT n > 0 AND at > now() - make_interval(secs => least(:seconds * 2 ^ least(n - 1, 30), :seconds_max)) "
        "AS cools FROM bad",
        session_id=session_id,
        seconds=seconds,
        seconds_max=seconds_max,
    )
    return bool(row and row["cools"])


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionRow(RunOutcome):
    """A listed run, which may not have ended yet. `messages_compressed`: the events in its summaries of depth 0."""

    id: UUID
    reason: str
    focus: str | None
    attempts: int
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    messages_compressed: int

    @property
    def batches_created(self) -> int:
        """The number of summaries that the run wrote."""
        return len(self.summaries)


_LISTED: Final = columns(CompactionRow).replace(
    "messages_compressed",
    "(SELECT coalesce(sum(s.events), 0) FROM summaries s WHERE s.session_id = compactions.session_id "
    "AND s.id = ANY(compactions.summaries) AND s.depth = 0) AS messages_compressed",
)


async def find(database: Database, session_id: UUID, id: UUID) -> CompactionRow | None:
    """Return one run; None if there is none."""
    row = await database.fetchrow(
        f"SELECT {_LISTED} FROM compactions WHERE session_id = :session_id AND id = :id", session_id=session_id, id=id
    )
    return None if row is None else decode(CompactionRow, row, focus=_focus(row))


async def page(
    database: Database, session_id: UUID, *, state: str | None, after: tuple[datetime, UUID] | None, limit: int
) -> list[CompactionRow]:
    """Return runs, all or those in one state, newest first."""
    created_at, id = after or (None, None)
    rows = await database.fetch(
        f"SELECT {_LISTED} FROM compactions WHERE session_id = :session_id "
        "AND (:created_at::timestamptz IS NULL OR (created_at, id) < (:created_at, :id::uuid)) "
        "AND (:state::text IS NULL OR state = :state) ORDER BY created_at DESC, id DESC LIMIT :limit",
        session_id=session_id,
        created_at=created_at,
        id=id,
        limit=limit,
        state=state,
    )
    return [decode(CompactionRow, row, focus=_focus(row)) for row in rows]


RETRY: Final = (
    "UPDATE compactions SET state = 'scheduled', attempts = 0, finished_at = NULL "
    "WHERE session_id = :session_id AND id = :id AND state IN ('failed', 'skipped') RETURNING id"
)


async def retry(tx: Connection, ref: SessionRef, id: UUID) -> bool:
    """Schedule a failed or skipped run again; return False if there is no such run."""
    await _lock(tx, ref.session_id)
    row = await tx.fetchrow(RETRY, session_id=ref.session_id, id=id)
    if row is not None:
        await enqueue(tx, ref)
    return row is not None


async def enqueue_overdue(database: Database, older_than_seconds: float) -> int:
    """Queue jobs for sessions with runs that have waited long, whose jobs may be lost; return the number queued."""
    rows = await database.fetch(
        "SELECT palimpsest_compact(session_id, tenant_id) AS woken FROM palimpsest_across_compactions(:seconds)",
        seconds=older_than_seconds,
    )
    return sum(bool(row["woken"]) for row in rows)
