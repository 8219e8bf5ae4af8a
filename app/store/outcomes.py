"""Outcomes of calls, reported after they were made: the only part of a call's record that changes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import asyncpg

from app.core.assembly.assemble import CallRecord
from app.core.log.events import Json
from app.core.tokens.calibration import Reported
from app.core.tokens.learned import Learned
from app.store import calibrations, texts
from app.store.engine import Connection
from app.store.rows import columns, decode, parameters


@dataclass(frozen=True, slots=True)
class ReportedOutcome:
    """A reported outcome. `input_tokens` are the whole request's, including those read from or written to a cache."""

    input_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    output_tokens: int | None = None
    latency_ms: int | None = None
    error: Mapping[str, Json] | None = None
    overflow: bool = False


OUTCOME: Final = f"reported_at, {columns(ReportedOutcome)}"


def outcome_of(row: asyncpg.Record) -> ReportedOutcome | None:
    """Decode a row of OUTCOME; None until an outcome is reported."""
    if row["reported_at"] is None:
        return None
    return decode(ReportedOutcome, row, error=None if row["error"] is None else texts.loads(row["error"]))


STORE: Final = (
    "UPDATE model_calls SET reported_at = now(), input_tokens = :input_tokens, "
    "cache_read_tokens = :cache_read_tokens, cache_write_tokens = :cache_write_tokens, "
    "output_tokens = :output_tokens, latency_ms = :latency_ms, error = :error, overflow = :overflow "
    "WHERE session_id = :session_id AND call_id = :call_id"
)
LEARNED: Final = "SELECT learned FROM views WHERE session_id = :session_id AND view = :view FOR NO KEY UPDATE"
TEACH: Final = (
    "UPDATE views SET learned = :learned, learned_version = learned_version + 1 "
    "WHERE session_id = :session_id AND view = :view RETURNING learned_version"
)
SEEN: Final = (
    "UPDATE views SET reported_call = :call_id, reported_epoch = :epoch, reported_head = :head, "
    "reported_tokens = :tokens, reported_counted = :counted, reported_outside = :outside "
    "WHERE session_id = :session_id AND view = :view AND (reported_call IS NULL OR reported_call < :call_id) "
    "RETURNING view"
)
SET_TARGET: Final = (
    "UPDATE views SET target = :target WHERE session_id = :session_id AND view = :view "
    "AND policy_name = :policy_name AND policy_version = :policy_version "
    "AND model IS NOT DISTINCT FROM :model AND window_tokens = :window_tokens AND target <> :target"
)


async def store(tx: Connection, session_id: UUID, call_id: UUID, outcome: ReportedOutcome) -> None:
    """Store the outcome of a call."""
    await tx.execute(
        STORE,
        session_id=session_id,
        call_id=call_id,
        **parameters(outcome) | {"error": None if outcome.error is None else texts.dumps(outcome.error)},
    )


async def learned(tx: Connection, session_id: UUID, view: str) -> tuple[Learned | None, bool]:
    """Lock a view; return the calibration it has learned, None if none yet, and whether the view exists."""
    row = await tx.fetchrow(LEARNED, session_id=session_id, view=view)
    return (None, False) if row is None else (calibrations.learned(row["learned"]), True)


async def store_learned(tx: Connection, session_id: UUID, view: str, now: Learned) -> int:
    """Store the calibration that a view has learned; return its new version, 0 if the view is gone."""
    row = await tx.fetchrow(TEACH, session_id=session_id, view=view, learned=calibrations.learned_json(now))
    return 0 if row is None else int(row["learned_version"])


async def store_usage(tx: Connection, session_id: UUID, view: str, reported: Reported) -> bool:
    """Store the usage of a view's last call; return False if a later call has reported already."""
    row = await tx.fetchrow(SEEN, session_id=session_id, view=view, **parameters(reported))
    return row is not None


async def set_target(tx: Connection, session_id: UUID, call: CallRecord, window: int, target: int) -> None:
    """Store the new target of a call's view, if the view still has the call's settings."""
    policy_name, policy_version = call.policy
    await tx.execute(
        SET_TARGET,
        session_id=session_id,
        view=call.view,
        policy_name=policy_name,
        policy_version=policy_version,
        model=call.model,
        window_tokens=window,
        target=target,
    )
