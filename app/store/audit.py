"""Recorded calls and what their records name, as they are stored."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import asyncpg

from app.core.cover.summaries import Summary
from app.core.log.event import Event
from app.core.log.events import Json
from app.core.plan.context.frontier import START, Frontier, from_json
from app.core.view.record import CallRecord
from app.store import event_log, summaries, texts
from app.store.engine import Database
from app.store.event_log import SessionLog


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRow(CallRecord):
    """One recorded call. `outcome` is None until it is reported; its keys are those of the row."""

    created_at: datetime
    expires_at: datetime | None
    outcome: Mapping[str, Any] | None

    @property
    def erased_before(self) -> int:
        """How many of the session's events had been erased when this call was planned."""
        return int(self.manifest.get("redactions", 0))


OUTCOME: Final = (
    "reported_at",
    "input_tokens",
    "cache_read_tokens",
    "cache_write_tokens",
    "output_tokens",
    "latency_ms",
    "error",
    "overflow",
)
COLUMNS: Final = (
    "m.call_id, m.view, m.head, m.epoch, m.policy_name, m.policy_version, m.format, m.model, m.render_version,"
    " m.manifest, m.breakpoints, m.estimate, m.target, m.counted, m.evicted_tokens, m.sha256, m.retry_of,"
    f" m.created_at, m.expires_at, {', '.join(f'm.{name}' for name in OUTCOME)}"
)


def recorded(row: asyncpg.Record) -> CallRow:
    """A row of COLUMNS."""
    outcome = {name: row[name] for name in OUTCOME}
    if outcome["error"] is not None:
        outcome["error"] = json.loads(outcome["error"])
    return CallRow(
        call_id=row["call_id"],
        view=row["view"],
        head=row["head"],
        epoch=row["epoch"],
        policy=(row["policy_name"], row["policy_version"]),
        format=row["format"],
        model=row["model"],
        render_version=row["render_version"],
        manifest=texts.loads(row["manifest"]),
        breakpoints=tuple(row["breakpoints"]),
        estimate=row["estimate"],
        target=row["target"],
        counted=row["estimate"] if row["counted"] is None else row["counted"],
        evicted_tokens=row["evicted_tokens"],
        sha256=bytes(row["sha256"]),
        retry_of=row["retry_of"],
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        outcome=None if row["reported_at"] is None else outcome,
    )


async def find(database: Database, session_id: UUID, tenant_id: UUID, call_id: UUID) -> CallRow | None:
    """One call."""
    row = await database.fetchrow(
        f"SELECT {COLUMNS} FROM model_calls m WHERE session_id = $1 AND tenant_id = $2 AND call_id = $3",
        session_id,
        tenant_id,
        call_id,
    )
    return None if row is None else recorded(row)


async def page(
    database: Database, session_id: UUID, tenant_id: UUID, *, view: str | None, before: UUID | None, limit: int
) -> list[CallRow]:
    """The calls of a session, the newest first, as their ids order them."""
    # A view's calls are spread over its epochs: walking the session's own order and passing over other views' calls
    # is bounded by the page unless a view is hardly ever read.
    rows = await database.fetch(
        f"SELECT {COLUMNS} FROM model_calls m WHERE session_id = $1 AND tenant_id = $2 "
        "AND call_id < CASE WHEN $4::uuid IS NULL THEN 'ffffffff-ffff-ffff-ffff-ffffffffffff' ELSE $4 END "
        "AND ($3::text IS NULL OR view = $3) "
        "ORDER BY call_id DESC LIMIT $5",
        session_id,
        tenant_id,
        view,
        before,
        limit,
    )
    return [recorded(row) for row in rows]


@dataclass(frozen=True, slots=True)
class StoredEpoch:
    """A stored epoch: what decided on the frontier, the head at which it did, and what it left out."""

    epoch: int
    head: int
    cause: str
    created_at: datetime | None
    frontier: Frontier
    evictions: Sequence[Mapping[str, Json]] = ()


UNWRITTEN: Final = StoredEpoch(0, 0, "start", None, START)
"""What a context of an earlier seq than any epoch of its view is rendered from."""


async def epoch(database: Database, session_id: UUID, view: str, number: int) -> StoredEpoch | None:
    """An epoch with its frontier."""
    if number == 0:
        return UNWRITTEN
    row = await database.fetchrow(
        f"SELECT {_EPOCH} FROM epochs WHERE session_id = $1 AND view = $2 AND epoch = $3", session_id, view, number
    )
    return None if row is None else _epoch(row)


async def epochs_before(
    database: Database, session_id: UUID, view: str, upper: tuple[int, int], limit: int
) -> list[StoredEpoch]:
    """Up to `limit` epochs of a view below (head, number), the latest first."""
    rows = await database.fetch(
        f"SELECT {_EPOCH} FROM epochs WHERE session_id = $1 AND view = $2 AND epoch <= $4 AND (head, epoch) < ($3, $4) "
        "ORDER BY head DESC, epoch DESC LIMIT $5",
        session_id,
        view,
        *upper,
        limit,
    )
    return [_epoch(row) for row in rows]


async def epochs_of(
    database: Database, session_id: UUID, wanted: Sequence[tuple[str, int]]
) -> dict[tuple[str, int], StoredEpoch]:
    """The epochs with these views and numbers."""
    rows = await database.fetch(
        f"SELECT view, {_EPOCH} FROM epochs JOIN unnest($2::text[], $3::int[]) AS w (v, n) ON v = view AND n = epoch "
        "WHERE session_id = $1",
        session_id,
        [view for view, _ in wanted],
        [number for _, number in wanted],
    )
    found = {(row["view"], row["epoch"]): _epoch(row) for row in rows}
    return found | {key: UNWRITTEN for key in wanted if key[1] == 0}


_EPOCH: Final = "epoch, head, cause, created_at, frontier, evictions"


def _epoch(row: asyncpg.Record) -> StoredEpoch:
    frontier = from_json(texts.loads(row["frontier"]))
    return StoredEpoch(
        row["epoch"], row["head"], row["cause"], row["created_at"], frontier, json.loads(row["evictions"])
    )


async def events(database: Database, session_id: UUID, head: int, state: Frontier) -> tuple[Event, ...]:
    """The events up to `head` that a frontier lets be read, without the bodies of stubs."""
    stubbed = [stub.seq for stub in state.stubs if not stub.chars]
    kept = [seq for seq in state.kept if seq <= min(state.floor, head)]
    return await event_log.events(database, SessionLog(session_id), state.floor + 1, head, kept, bodiless=stubbed)


async def named(database: Database, session_id: UUID, state: Frontier) -> tuple[Summary, ...]:
    """The summaries that a frontier names, in its order, whatever became of them."""
    if not state.folds:
        return ()
    rows = await database.fetch(
        f"SELECT ROW({summaries.COLUMNS}) AS summary FROM summaries WHERE session_id = $1 AND id = ANY($2::uuid[])",
        session_id,
        [fold.id for fold in state.folds],
    )
    found = {one.id: one for one in await summaries.told(database, (row["summary"] for row in rows))}
    return tuple(found[fold.id] for fold in state.folds if fold.id in found)


async def erased(database: Database, session_id: UUID) -> list[int]:
    """The seqs of erased events in the order in which they were erased."""
    rows = await database.fetch("SELECT seq FROM redactions WHERE session_id = $1 ORDER BY created_at, seq", session_id)
    return [row["seq"] for row in rows]


@dataclass(frozen=True, slots=True)
class CallPlace:
    """Where a call stands: what an event's history needs of it."""

    call_id: UUID
    created_at: datetime
    view: str
    epoch: int
    policy: tuple[str, int]
    erased_before: int


async def calls_since(
    database: Database,
    session_id: UUID,
    tenant_id: UUID,
    *,
    seq: int,
    view: str | None,
    after: UUID,
    limit: int,
) -> list[CallPlace]:
    """The calls whose context reaches `seq`, the oldest first, from the id `after` on."""
    rows = await database.fetch(
        "SELECT call_id, created_at, view, epoch, policy_name, policy_version, "
        "coalesce((manifest ->> 'redactions')::int, 0) AS redactions FROM model_calls WHERE session_id = $1 "
        "AND tenant_id = $2 AND call_id > $5 AND head >= $3 AND ($4::text IS NULL OR view = $4) "
        "ORDER BY call_id LIMIT $6",
        session_id,
        tenant_id,
        seq,
        view,
        after,
        limit,
    )
    return [
        CallPlace(
            row["call_id"],
            row["created_at"],
            row["view"],
            row["epoch"],
            (row["policy_name"], row["policy_version"]),
            row["redactions"],
        )
        for row in rows
    ]
