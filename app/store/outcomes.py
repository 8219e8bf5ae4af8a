"""What became of calls when they were sent: reported back later, and the only thing of a call's record that changes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import asyncpg

from app.core.audit.manifest import CallManifest, from_json
from app.core.log.events import Json, canonical_json
from app.core.tokens.calibration import Reported
from app.core.tokens.learned import Learned
from app.store import calibrations, texts
from app.store.engine import Connection, Database


@dataclass(frozen=True, slots=True)
class ReportedOutcome:
    """As reported. `input_tokens` are all of the request's, also those read from a cache or written to it."""

    input_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    output_tokens: int | None = None
    latency_ms: int | None = None
    error: Mapping[str, Json] | None = None
    overflow: bool = False


@dataclass(frozen=True, slots=True)
class ReportedCall:
    """Of a call's record what its outcome is judged by; `outcome` is None until it is reported."""

    call_id: UUID
    view: str
    head: int
    epoch: int
    policy: tuple[str, int]
    format: str
    model: str | None
    manifest: CallManifest
    estimate: int
    counted: int | None
    retry_of: UUID | None
    outcome: ReportedOutcome | None


OUTCOME: Final = (
    "reported_at, input_tokens, cache_read_tokens, cache_write_tokens, output_tokens, latency_ms, error, overflow"
)


def outcome_of(row: asyncpg.Record) -> ReportedOutcome | None:
    """A row of OUTCOME; None until it is reported."""
    if row["reported_at"] is None:
        return None
    return ReportedOutcome(
        input_tokens=row["input_tokens"],
        cache_read_tokens=row["cache_read_tokens"],
        cache_write_tokens=row["cache_write_tokens"],
        output_tokens=row["output_tokens"],
        latency_ms=row["latency_ms"],
        error=None if row["error"] is None else json.loads(row["error"]),
        overflow=row["overflow"],
    )


_FIND: Final = f"""
SELECT call_id, view, head, epoch, policy_name, policy_version, format, model, manifest, estimate, counted, retry_of,
       {OUTCOME}
FROM model_calls WHERE session_id = $1 AND tenant_id = $2 AND call_id = $3
"""


async def find(database: Database, session_id: UUID, tenant_id: UUID, call_id: UUID) -> ReportedCall | None:
    """One call."""
    return _call(await database.fetchrow(_FIND, session_id, tenant_id, call_id))


async def lock(tx: Connection, session_id: UUID, tenant_id: UUID, call_id: UUID) -> ReportedCall | None:
    """One call whose outcome nobody else reports until the transaction ends."""
    return _call(await tx.fetchrow(_FIND + "FOR NO KEY UPDATE", session_id, tenant_id, call_id))


def _call(row: asyncpg.Record | None) -> ReportedCall | None:
    if row is None:
        return None
    return ReportedCall(
        row["call_id"],
        row["view"],
        row["head"],
        row["epoch"],
        (row["policy_name"], row["policy_version"]),
        row["format"],
        row["model"],
        from_json(texts.loads(row["manifest"])),
        row["estimate"],
        row["counted"],
        row["retry_of"],
        outcome_of(row),
    )


async def store(tx: Connection, session_id: UUID, call_id: UUID, outcome: ReportedOutcome) -> None:
    """Report it."""
    await tx.execute(
        "UPDATE model_calls SET reported_at = now(), input_tokens = $3, cache_read_tokens = $4, "
        "cache_write_tokens = $5, output_tokens = $6, latency_ms = $7, error = $8, overflow = $9 "
        "WHERE session_id = $1 AND call_id = $2",
        session_id,
        call_id,
        outcome.input_tokens,
        outcome.cache_read_tokens,
        outcome.cache_write_tokens,
        outcome.output_tokens,
        outcome.latency_ms,
        None if outcome.error is None else canonical_json(outcome.error),
        outcome.overflow,
    )


async def learned(tx: Connection, session_id: UUID, view: str) -> tuple[Learned | None, bool]:
    """What a view's own calls have taught, and whether there is such a view; nobody else changes it until the
    transaction ends."""
    row = await tx.fetchrow(
        "SELECT learned FROM views WHERE session_id = $1 AND view = $2 FOR NO KEY UPDATE", session_id, view
    )
    return (None, False) if row is None else (calibrations.learned(row["learned"]), True)


async def teach(tx: Connection, session_id: UUID, view: str, now: Learned) -> int:
    """Keep with a view what its own calls have taught: the new version of that."""
    row = await tx.fetchrow(
        "UPDATE views SET learned = $3, learned_version = learned_version + 1 WHERE session_id = $1 AND view = $2 "
        "RETURNING learned_version",
        session_id,
        view,
        calibrations.learned_json(now),
    )
    return 0 if row is None else int(row["learned_version"])


async def seen(tx: Connection, session_id: UUID, view: str, reported: Reported) -> bool:
    """Keep with a view what its last call came to, unless a later one has reported already."""
    row = await tx.fetchrow(
        "UPDATE views SET reported_call = $3, reported_epoch = $4, reported_head = $5, reported_tokens = $6, "
        "reported_counted = $7, reported_outside = $8 WHERE session_id = $1 AND view = $2 "
        "AND (reported_call IS NULL OR reported_call < $3) RETURNING view",
        session_id,
        view,
        reported.call_id,
        reported.epoch,
        reported.head,
        reported.tokens,
        reported.counted,
        reported.outside,
    )
    return row is not None


async def set_target(tx: Connection, session_id: UUID, call: ReportedCall, window: int, target: int) -> None:
    """What a view may take by its calibration, if it still has the settings that the call was made with."""
    await tx.execute(
        "UPDATE views SET target = $7 WHERE session_id = $1 AND view = $2 AND policy_name = $3 AND policy_version = $4 "
        "AND model IS NOT DISTINCT FROM $5 AND window_tokens = $6 AND target <> $7",
        session_id,
        call.view,
        *call.policy,
        call.model,
        window,
        target,
    )
