"""Jobs: the workers' queue and their health, and the counts of the work done and of the tokens spent on summaries."""

import json
import math
import socket
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Final
from uuid import UUID

import asyncpg

from app.store.driver import UNREACHABLE, connect
from app.store.engine import Database, Executor
from app.store.rows import columns, decode, parameters

KINDS: Final = ("compact", "deliver", "erase", "index")
"""Kinds of jobs: compaction of a session, delivery of a webhook, an erasure, indexing of a session for search."""


@dataclass(frozen=True, slots=True)
class Queue:
    """Numbers of jobs of one kind: waiting, running, and dead.

    A job is dead if its worker has given no sign of life for five minutes, or the queue has given it up. `overdue` jobs
    have waited for a worker for more than a minute; `overdue_seconds` is the time since the oldest waiting job was due,
    0 if none is.
    """

    kind: str
    waiting: int = 0
    running: int = 0
    dead: int = 0
    overdue: int = 0
    overdue_seconds: float = 0.0


QUEUES: Final = """
SELECT entrypoint AS kind, count(*) FILTER (WHERE status = 'queued') AS waiting,
       count(*) FILTER (WHERE status = 'picked' AND heartbeat > now() - interval '5 minutes') AS running,
       count(*) FILTER (WHERE status <> 'queued' AND (status <> 'picked' OR heartbeat <= now() - interval '5 minutes'))
           AS dead,
       count(*) FILTER (WHERE status = 'queued' AND execute_after <= now() - interval '1 minute') AS overdue,
       coalesce(extract(epoch FROM now() - min(execute_after)
                FILTER (WHERE status = 'queued' AND execute_after <= now())), 0)::float8 AS overdue_seconds
FROM pgqueuer GROUP BY entrypoint
"""


async def queues(database: Database) -> list[Queue]:
    """Return the numbers of each kind, including kinds without jobs."""
    found = [decode(Queue, row) for row in await database.fetch(QUEUES)]
    return [next((one for one in found if one.kind == kind), Queue(kind)) for kind in KINDS]


async def enqueue(connection: Executor, kind: str, id: UUID, payload: str) -> None:
    """Queue a job about the session or erasure `id`, unless one of this kind waits or runs."""
    await connection.execute(
        "INSERT INTO pgqueuer (priority, entrypoint, payload, dedupe_key, status) "
        "VALUES (0, :kind, convert_to(:payload, 'UTF8'), :dedupe_key, 'queued') ON CONFLICT (dedupe_key) "
        "WHERE ((status = ANY (ARRAY['queued'::pgqueuer_status, 'picked'::pgqueuer_status])) "
        "AND (dedupe_key IS NOT NULL)) DO NOTHING",
        kind=kind,
        payload=payload,
        dedupe_key=f"{kind}:{id}",
    )


MAKE_DUE: Final = (
    "UPDATE pgqueuer SET execute_after = now() WHERE dedupe_key = :key AND status = 'queued' AND execute_after > now()"
)


async def make_due(connection: Executor, session_id: UUID) -> None:
    """Make a session's queued compaction due now, if it was delayed."""
    await connection.execute(MAKE_DUE, key=f"compact:{session_id}")


RELEASE: Final = "UPDATE pgqueuer SET dedupe_key = NULL WHERE id = :job_id"


async def release_key(connection: Executor, job_id: int) -> None:
    """Allow the next job of a session to be queued while this one, which is about to end, still runs."""
    await connection.execute(RELEASE, job_id=job_id)


QUEUED_SECONDS: Final = (
    "SELECT coalesce(extract(epoch FROM clock_timestamp() - min(created)), 0)::float8 AS seconds FROM pgqueuer "
    "WHERE dedupe_key = :key AND status IN ('queued', 'picked')"
)


async def queued_seconds(database: Database, session_id: UUID) -> float:
    """Return the seconds since a session's compaction was queued; 0 if none is queued or running."""
    row = await database.fetchrow(QUEUED_SECONDS, key=f"compact:{session_id}")
    return 0.0 if row is None else max(0.0, row["seconds"])


STORE_TRACE: Final = (
    "UPDATE pgqueuer SET headers = jsonb_build_object('otel', :fields::jsonb) "
    "WHERE dedupe_key = :dedupe_key AND status IN ('queued', 'picked') AND headers IS NULL"
)


async def store_trace_context(connection: Executor, session_id: UUID, fields: Mapping[str, str]) -> None:
    """Add the trace context of the request that queued a session's job to the job; does nothing if it is empty. A
    worker may have started the job already: it reads the context at its end."""
    if fields:
        await connection.execute(STORE_TRACE, fields=json.dumps(dict(fields)), dedupe_key=f"compact:{session_id}")


TRACE: Final = "SELECT headers -> 'otel' AS fields FROM pgqueuer WHERE id = :id"


async def trace_context(database: Database, job: int) -> Mapping[str, str]:
    """Return the trace context of the request that queued a job; empty if it was not traced."""
    row = await database.fetchrow(TRACE, id=job)
    return {} if row is None or row["fields"] is None else dict(json.loads(row["fields"]))


_NAME_CHARACTERS_MAX: Final = 63  # Postgres truncates longer names; names of containers differ at their end
_WORKER: Final = "palimpsest worker on "
APPLICATION_NAME: Final = _WORKER + socket.gethostname()[len(_WORKER) - _NAME_CHARACTERS_MAX :]
"""Application name of the connections of workers on this machine or in this container. An address would not do, since
routers that translate addresses give many machines the same one."""
_CONNECTED: Final = """
SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = $1 AND datname = current_database())
"""


async def find_worker_problem(database_url: str) -> str | None:
    """Return the problem that keeps the worker of this machine or container from working; None if it works."""
    try:
        connection = await connect(database_url)
        try:
            connected = await connection.fetchval(_CONNECTED, APPLICATION_NAME)
        finally:
            await connection.close()
    except (*UNREACHABLE, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        return f"the database cannot be used: {error}"
    return None if connected else "no worker of this machine is connected to the database"


BOUNDS: Final = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3_600.0, math.inf)
"""Upper bounds, in seconds, of the histogram of delays."""


@dataclass(frozen=True, slots=True)
class WorkDone:
    """Finished work: its kind (summary, delivery or retention), the model or rule that did it, the outcome, and the
    seconds since it was due."""

    kind: str
    maker: str
    outcome: str
    seconds: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class WorkCount:
    """The work of one kind, maker and outcome that was done within `bound` seconds, but not within the bound before."""

    kind: str
    maker: str
    outcome: str
    bound: float
    number: int
    seconds: float
    input_tokens: int
    output_tokens: int
    newest_at: datetime


async def count_work(connection: Executor, done: WorkDone, number: int = 1) -> None:
    """Count a piece of work, or `number` pieces."""
    await connection.execute(
        "INSERT INTO work_counts AS w (kind, maker, outcome, bound, number, seconds, input_tokens, output_tokens) "
        "VALUES (:kind, :maker, :outcome, :bound, :number, :seconds, :input_tokens, :output_tokens) "
        "ON CONFLICT (kind, maker, outcome, bound) DO UPDATE SET number = w.number + excluded.number, "
        "seconds = w.seconds + excluded.seconds, input_tokens = w.input_tokens + excluded.input_tokens, "
        "output_tokens = w.output_tokens + excluded.output_tokens, newest_at = now()",
        bound=BOUNDS[bisect_left(BOUNDS, done.seconds)],
        number=number,
        **parameters(done),
    )


async def work_counts(database: Database) -> Sequence[WorkCount]:
    """Return all counts: a few rows for each kind of work."""
    rows = await database.fetch(f"SELECT {columns(WorkCount)} FROM work_counts ORDER BY kind, maker, outcome, bound")
    return [decode(WorkCount, row) for row in rows]


# The condition is on the row being updated, so that concurrent reservations cannot both take the last tokens.
_RESERVE: Final = """
INSERT INTO provider_spend AS p (tenant_id, day, spent, reserved, refused)
VALUES (:tenant_id, (now() AT TIME ZONE 'UTC')::date, 0, :tokens, 0)
ON CONFLICT (tenant_id, day) DO UPDATE SET reserved = p.reserved + :tokens
WHERE p.spent + p.reserved + :tokens <= :most
RETURNING day
"""
_REFUSED: Final = """
INSERT INTO provider_spend AS p (tenant_id, day, spent, reserved, refused)
VALUES (:tenant_id, (now() AT TIME ZONE 'UTC')::date, 0, 0, 1)
ON CONFLICT (tenant_id, day) DO UPDATE SET refused = p.refused + 1
"""


async def reserve_tokens(database: Database, tenant_id: UUID, tokens: int, most: int) -> date | None:
    """Reserve tokens of a tenant's daily limit `most`; return the day, None if too few tokens are left."""
    row = None
    if tokens <= most:
        row = await database.fetchrow(_RESERVE, tenant_id=tenant_id, tokens=tokens, most=most)
    if row is None:
        await database.execute(_REFUSED, tenant_id=tenant_id)
        return None
    found: date = row["day"]
    return found


async def settle_tokens(database: Database, tenant_id: UUID, day: date, reserved: int, spent: int) -> None:
    """Replace a request's reservation by its cost, on the day of the reservation."""
    await database.execute(
        "UPDATE provider_spend SET reserved = reserved - :reserved, spent = spent + :spent "
        "WHERE tenant_id = :tenant_id AND day = :day",
        tenant_id=tenant_id,
        day=day,
        reserved=reserved,
        spent=spent,
    )


@dataclass(frozen=True, slots=True)
class TokensToday:
    """Tokens that all tenants have spent and reserved today, and the number of their refused requests."""

    spent: int
    reserved: int
    refused: int


async def tokens_today(database: Database) -> TokensToday:
    """Return the sums of today's rows."""
    row = await database.fetchrow(f"SELECT {columns(TokensToday)} FROM palimpsest_across_spend()")
    return TokensToday(0, 0, 0) if row is None else decode(TokensToday, row)
