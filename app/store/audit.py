"""Recorded calls, and the epochs, events and summaries that their records name."""

import json
from collections.abc import Collection, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

import asyncpg

from app.core import dataclass
from app.core.assembly.assemble import CallRecord
from app.core.log.event import Event
from app.core.memory.cover import Summary
from app.core.plan.state.frontier import START, Frontier, from_json
from app.core.record import from_json as manifest_of
from app.core.record.evictions import Eviction, eviction_of
from app.store import calibrations, event_log, summaries, texts
from app.store.calibrations import CalibrationSamples
from app.store.engine import Database, Executor
from app.store.event_log import SessionLog
from app.store.ids import SessionRef, session_key
from app.store.reports import OUTCOME, VIEW, ReportedOutcome, ReportedView, outcome_of, reported_view
from app.store.rows import decode


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRow(CallRecord):
    """A recorded call. `outcome` and `reported_at` are None until an outcome is reported. `has_count` is False for
    records of early versions, which have no count; `counted` is then the estimate."""

    created_at: datetime
    expires_at: datetime | None
    reported_at: datetime | None
    outcome: ReportedOutcome | None
    has_count: bool = True


COLUMNS: Final = (
    "call_id, view, head, epoch, policy_name, policy_version, format, model, render_version, manifest, breakpoints,"
    f" estimate, target, counted, evicted_tokens, sha256, retry_of, created_at, expires_at, {OUTCOME}"
)


def decode_call(row: asyncpg.Record) -> CallRow:
    """Decode a row of COLUMNS. Raises UnknownVersion."""
    return decode(
        CallRow,
        row,
        manifest=manifest_of(texts.loads(row["manifest"])),
        counted=row["estimate"] if row["counted"] is None else row["counted"],
        outcome=outcome_of(row),
        has_count=row["counted"] is not None,
    )


_UNKNOWN_TIME: Final = datetime.min.replace(tzinfo=UTC)
_RECORDED: Final = [field.name for field in fields(CallRecord)]


def without_outcome(call: CallRecord) -> CallRow:
    """Return a recorded call without its times, as if it had no outcome yet."""
    own = {name: getattr(call, name) for name in _RECORDED}
    return CallRow(**own, created_at=_UNKNOWN_TIME, expires_at=None, reported_at=None, outcome=None)


_OF_SESSION: Final = f"SELECT {COLUMNS} FROM model_calls WHERE session_id = :session_id AND tenant_id = :tenant_id"
_FIND: Final = f"{_OF_SESSION} AND call_id = :call_id"
# A view's calls are spread over its epochs. Walking the line's own order and skipping other views' calls is bounded by
# the page unless the view is rarely read. With several lines, each is walked as far as the page may reach.
PAGE: Final = f"""
WITH found AS (
    SELECT c.session_id, c.call_id FROM unnest(:session_ids::uuid[]) AS l(id) CROSS JOIN LATERAL (
        SELECT session_id, call_id FROM model_calls WHERE session_id = l.id AND tenant_id = :tenant_id
        AND call_id < CASE WHEN :before::uuid IS NULL THEN 'ffffffff-ffff-ffff-ffff-ffffffffffff' ELSE :before END
        AND (:view::text IS NULL OR view = :view) ORDER BY call_id DESC LIMIT :limit) c
    ORDER BY c.call_id DESC LIMIT :limit
)
SELECT session_id, {COLUMNS} FROM found JOIN model_calls USING (session_id, call_id)
WHERE tenant_id = :tenant_id ORDER BY call_id DESC
"""
CALLS: Final = "SELECT m.* FROM model_calls m WHERE m.tenant_id = :tenant_id::uuid"
IDS: Final = "m.call_id BETWEEN :oldest_id::uuid AND :newest_id::uuid"
NEWEST_ID: Final = "ORDER BY m.call_id DESC"
OF_LINES: Final = (
    "SELECT m.* FROM unnest(:session_ids::uuid[]) AS l(id) CROSS JOIN LATERAL "
    f"({CALLS} AND m.session_id = l.id AND {IDS} {NEWEST_ID} LIMIT :most::int) m {NEWEST_ID}"
)
"""The newest calls of several lines, each of which is read as far as a page may reach."""
NAME: Final = "(SELECT s.external_id FROM sessions s WHERE s.session_id = m.session_id) AS external_id"
"""Column with the name of a call's session, None if the session was erased."""
_SINCE: Final = f"""{_OF_SESSION} AND call_id > :after AND head >= :seq
  AND (:view::text IS NULL OR view = :view) ORDER BY call_id LIMIT :limit
"""


async def find(connection: Executor, ref: SessionRef, call_id: UUID) -> CallRow | None:
    """Return one call; None if there is none. Raises UnknownVersion."""
    row = await connection.fetchrow(_FIND, **ref._asdict(), call_id=call_id)
    return None if row is None else decode_call(row)


LOCK_CALL: Final = f"{_FIND} FOR NO KEY UPDATE"
_KNOWN: Final = (
    "JOIN calibrations c ON c.tenant_id = :tenant_id AND c.model = call.model AND c.estimator = call.counter"
)
# Rows are locked in this order, the calibration only if it is free. A sealed manifest names no estimator here.
_TO_REPORT: Final = f"""
WITH call AS ({_FIND.replace(" FROM", ", manifest ->> 'estimator' AS counter FROM", 1)}{{call_lock}}
), own AS (
    SELECT {VIEW} FROM call JOIN views v ON v.session_id = :session_id AND v.view = call.view{{view_lock}}
), taken AS (
    SELECT {calibrations.FIELDS} FROM call LEFT JOIN own ON true {_KNOWN}{{calibration_lock}}
), known AS (
    SELECT taken.*, true AS locked FROM taken
    UNION ALL SELECT {calibrations.FIELDS}, false FROM call {_KNOWN} WHERE NOT EXISTS (SELECT FROM taken)
)
SELECT call.*, own.*, known.*, (
    SELECT p.call_id FROM model_calls p WHERE p.session_id = :session_id AND p.view = call.view AND p.call_id < :call_id
    ORDER BY p.call_id DESC LIMIT 1) AS previous
FROM call LEFT JOIN own ON true LEFT JOIN known ON true
"""

READ: Final = _TO_REPORT.format(call_lock="", view_lock="", calibration_lock="")
LOCK: Final = _TO_REPORT.format(
    call_lock=" FOR NO KEY UPDATE", view_lock=" FOR NO KEY UPDATE OF v", calibration_lock=" FOR UPDATE OF c SKIP LOCKED"
)


@dataclass(frozen=True, slots=True)
class ReportedCall:
    """A call with its view and its model's calibration, all of them locked unless they were only read.

    `view` is None before its first epoch. `calibration` is None if none was found: there may be one that a sealed
    manifest hides. `previous` is the view's call before this one; None if it is unknown, or if there is none.
    """

    call: CallRow
    view: ReportedView | None
    calibration: CalibrationSamples | None
    previous: UUID | None


async def to_report(connection: Executor, ref: SessionRef, call_id: UUID, *, lock: bool) -> ReportedCall | None:
    """Return one call, with `lock` locked against other reports until the transaction ends. Raises UnknownVersion."""
    row = await connection.fetchrow(LOCK if lock else READ, **ref._asdict(), call_id=call_id)
    if row is None:
        return None
    known = None if row["locked"] is None else calibrations.with_samples(row, locked=row["locked"])
    return ReportedCall(decode_call(row), reported_view(row), known, row["previous"])


async def page(
    database: Database,
    session_ids: Collection[UUID],
    tenant_id: UUID,
    *,
    view: str | None,
    before: UUID | None,
    limit: int,
) -> list[tuple[UUID, CallRow]]:
    """Return the calls of some lines, newest first by id, each with the id of its line."""
    rows = await database.fetch(
        PAGE, session_ids=list(session_ids), tenant_id=tenant_id, view=view, before=before, limit=limit
    )
    return [(row["session_id"], decode_call(row)) for row in rows]


async def is_newest(database: Database, tenant_id: UUID, line: str, call_id: UUID) -> bool:
    """Return whether no call of a line's main view was made after this one, through whichever process."""
    newest = await page(database, [session_key(tenant_id, line)], tenant_id, view="main", before=None, limit=1)
    return [one.call_id for _, one in newest] == [call_id]


async def calls_since(
    database: Database, ref: SessionRef, *, seq: int, view: str | None, after: UUID, limit: int
) -> list[CallRow]:
    """Return the calls after the id `after` whose context reaches `seq`, oldest first."""
    rows = await database.fetch(_SINCE, **ref._asdict(), seq=seq, view=view, after=after, limit=limit)
    return [decode_call(row) for row in rows]


@dataclass(frozen=True, slots=True)
class StoredEpoch:
    """A stored epoch. `head` is the session's head when it was opened; `created_at` is None only for EPOCH_ZERO."""

    epoch: int
    head: int
    cause: str
    created_at: datetime | None
    frontier: Frontier
    evictions: tuple[Eviction, ...] = ()


EPOCH_ZERO: Final = StoredEpoch(0, 0, "start", None, START)
"""The epoch of a context that precedes the first stored epoch of its view."""


_COLUMNS_OF_EPOCH: Final = "epoch, head, cause, created_at, frontier, evictions"


def _epoch(row: asyncpg.Record) -> StoredEpoch:
    """Decode a row of _COLUMNS_OF_EPOCH."""
    evictions = tuple(map(eviction_of, json.loads(row["evictions"])))
    return decode(StoredEpoch, row, frontier=from_json(texts.loads(row["frontier"])), evictions=evictions)


_EPOCHS_BEFORE: Final = f"""
SELECT {_COLUMNS_OF_EPOCH} FROM epochs WHERE session_id = :session_id AND view = :view AND epoch <= :epoch
  AND (head, epoch) < (:head, :epoch) ORDER BY head DESC, epoch DESC LIMIT :limit
"""
_EPOCHS_OF: Final = f"""
SELECT view, {_COLUMNS_OF_EPOCH} FROM epochs
JOIN unnest(:views::text[], :numbers::int[]) AS w (v, n) ON v = view AND n = epoch WHERE session_id = :session_id
"""


async def epoch(database: Database, session_id: UUID, view: str, number: int) -> StoredEpoch | None:
    """Return an epoch of a view; None if there is none."""
    return (await epochs_of(database, session_id, [(view, number)])).get((view, number))


async def epochs_before(
    database: Database, session_id: UUID, view: str, upper: tuple[int, int], limit: int
) -> list[StoredEpoch]:
    """Return up to `limit` epochs of a view before `upper`, a head and an epoch number, latest first."""
    head, number = upper
    rows = await database.fetch(_EPOCHS_BEFORE, session_id=session_id, view=view, head=head, epoch=number, limit=limit)
    return [_epoch(row) for row in rows]


async def epochs_of(
    database: Database, session_id: UUID, wanted: Sequence[tuple[str, int]]
) -> dict[tuple[str, int], StoredEpoch]:
    """Return the epochs with these views and numbers, by view and number; number 0 is EPOCH_ZERO."""
    views, numbers = [view for view, _ in wanted], [number for _, number in wanted]
    rows = await database.fetch(_EPOCHS_OF, session_id=session_id, views=views, numbers=numbers)
    found = {(row["view"], row["epoch"]): _epoch(row) for row in rows}
    return found | {key: EPOCH_ZERO for key in wanted if key[1] == 0}


async def events(database: Database, session_id: UUID, head: int, frontier: Frontier) -> tuple[Event, ...]:
    """Return the events up to `head` that a frontier shows; fully stubbed ones come without bodies."""
    stubbed = [stub.seq for stub in frontier.stubs if not stub.chars]
    kept = [seq for seq in frontier.kept if seq <= min(frontier.floor, head)]
    return await event_log.events(database, SessionLog(session_id), frontier.floor + 1, head, kept, bodiless=stubbed)


async def summaries_of_frontier(database: Database, session_id: UUID, frontier: Frontier) -> tuple[Summary, ...]:
    """Return the summaries that a frontier names, in its order and whatever their status."""
    if not frontier.folds:
        return ()
    found = await summaries.with_ids(database, session_id, [fold.id for fold in frontier.folds])
    return tuple(found[fold.id] for fold in frontier.folds if fold.id in found)


async def erased_seqs(database: Database, session_id: UUID) -> list[int]:
    """Return the seqs of erased events in the order of their erasure."""
    rows = await database.fetch(
        "SELECT seq FROM redactions WHERE session_id = :session_id ORDER BY created_at, seq", session_id=session_id
    )
    return [row["seq"] for row in rows]
