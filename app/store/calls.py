"""Recording of calls and of the epochs they open, in one statement."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final
from uuid import UUID

import asyncpg

from app.core.assembly.assemble import Assembled, CallRecord, NewEpoch
from app.core.assembly.inputs import CoverBounds
from app.core.log.events import canonical_json
from app.core.plan.state.frontier import to_json
from app.core.record import CallManifest
from app.core.record import to_json as manifest_json
from app.core.record.evictions import eviction_row
from app.core.render.formats import FORMATS
from app.store import answers, compactions, texts
from app.store.answers import AlreadyAnswered, KeyClaim
from app.store.driver import numbered
from app.store.engine import Database, Executor
from app.store.rows import parameters
from app.store.views import LEGIBLE_IN_FRONTIER

NewResponse = tuple[KeyClaim, Mapping[str, object]]
"""The claim of a request, and the response to store under its key."""

_CALL: Final = (
    *("session_id", "tenant_id", "policy_name", "policy_version", "evicted_class"),
    *(field.name for field in fields(CallRecord) if field.name != "policy"),
    *("clock", "window_tokens", "outside_tokens", "tools_tokens", "system_tokens", "ephemeral_tokens"),
    *("breakpoint_tokens", "breakpoint_blocks", "held_out"),
)
_COLUMNS: Final = ", ".join((*_CALL, "expires_at"))
_VALUES: Final = ", ".join((*(f":{column}" for column in _CALL), "now() + make_interval(days => :keep_days)"))
# The id is the row's, not the parameter: with tables spread over servers, a call is thus stored where its session is.
_SELECTED: Final = _VALUES.replace(":session_id", "s.session_id", 1)


# A call has no foreign key to its session. Erasing a session deletes its row before its calls, so no call is added to a
# session that is gone or was created again under the same name.
RECORD_CALL: Final = f"""
INSERT INTO model_calls AS added ({_COLUMNS}) SELECT {_SELECTED}
FROM sessions s WHERE s.session_id = :session_id AND s.tenant_id = :tenant_id AND s.created_at = :created_at
FOR KEY SHARE RETURNING added.call_id
"""

# The conditions under which a held view is unchanged: the session's head and version, the view's epoch and learned
# version, the calibration's version, the last call's breakpoints if the format has cache markers, the reach of
# summaries that may replace dropped events (`CoverBounds`), and that it is the same session (`created_at`).
IF_UNCHANGED: Final = """
FROM sessions s JOIN views v ON v.session_id = s.session_id AND v.view = :view
WHERE s.session_id = :session_id AND s.tenant_id = :tenant_id AND s.created_at = :created_at
  AND s.head = :head AND s.version = :version AND v.epoch = :held_epoch AND v.learned_version = :learned_version
  AND :calibration_version = coalesce((SELECT c.version FROM calibrations c
        WHERE c.tenant_id = :tenant_id AND c.model = :model AND c.estimator = :estimator), 0)
  AND (:last_breakpoints::bigint[] IS NULL OR :last_breakpoints = coalesce((SELECT breakpoints FROM model_calls m
        WHERE m.session_id = :session_id AND m.view = :view AND m.epoch = :held_epoch
        ORDER BY m.call_id DESC LIMIT 1), '{}'))
  AND (:cover_id::uuid IS NULL OR EXISTS (SELECT FROM (SELECT coalesce(max(to_seq), 0) AS reach FROM summaries
            WHERE session_id = :session_id AND cover_id = :cover_id AND status = 'live') c
        WHERE c.reach = :covered_to::bigint OR c.reach < :lost_from::bigint OR (c.reach < :heal_from::bigint
            AND EXISTS (SELECT FROM compactions o WHERE o.session_id = :session_id AND o.state = 'running'))))
FOR KEY SHARE OF s
"""
COMPACTION_COLUMN: Final = (
    f"CASE WHEN :compacting::boolean THEN ({compactions.COMPACTION_STATE}) ELSE 'none' END AS compaction"
)
RECORD_CALL_IF_UNCHANGED: Final = (
    f"INSERT INTO model_calls ({_COLUMNS}) SELECT {_SELECTED} {IF_UNCHANGED} RETURNING {COMPACTION_COLUMN}"
)

# An epoch is opened only on top of the one its plan started from; otherwise nothing is written and the plan is made
# again.
MOVE: Final = """
INSERT INTO views (session_id, tenant_id, view, policy_name, policy_version, model, window_tokens, epoch, epochs,
                   target, carry_tokens)
SELECT :session_id, :tenant_id, :view, :view_policy_name, :view_policy_version, :view_model, :view_window_tokens,
       CASE WHEN :current THEN :epoch ELSE 0 END, :epoch, :view_target, :carry_tokens FROM allowed
ON CONFLICT (session_id, view) DO UPDATE SET epochs = excluded.epochs,
    policy_name = CASE WHEN :current THEN excluded.policy_name ELSE views.policy_name END,
    policy_version = CASE WHEN :current THEN excluded.policy_version ELSE views.policy_version END,
    model = CASE WHEN :current THEN excluded.model ELSE views.model END,
    window_tokens = CASE WHEN :current THEN excluded.window_tokens ELSE views.window_tokens END,
    target = CASE WHEN :current THEN excluded.target ELSE views.target END,
    carry_tokens = CASE WHEN :current THEN excluded.carry_tokens ELSE views.carry_tokens END,
    epoch = CASE WHEN :current THEN excluded.epoch ELSE views.epoch END,
    afresh = CASE WHEN :current THEN NULL ELSE views.afresh END
WHERE views.epochs = :epoch - 1
RETURNING view
"""
_EPOCH: Final = (
    *("session_id", "tenant_id", "view", "epoch", "head", "cause", "frontier", "tokens_before", "tokens_after"),
    *("floor", "kept", "stubbed", "folded", "evictions", "evicted", "changed_seq", "stable_tokens"),
)
EPOCH_COLUMNS: Final = ", ".join(_EPOCH)
EPOCH_VALUES: Final = ", ".join(f":{column}" for column in _EPOCH).replace(":folded", ":folded::uuid[]")
IN_SESSION: Final = """
FROM sessions s WHERE s.session_id = :session_id AND s.tenant_id = :tenant_id AND s.created_at = :created_at
FOR KEY SHARE"""
# $allowed is a FROM clause that gives one row if the epoch may be stored, else none.
_OPEN: Final = f"""
WITH allowed AS (SELECT $allowed), stored AS ({MOVE}
), opened AS (
    INSERT INTO epochs ({EPOCH_COLUMNS}) SELECT {EPOCH_VALUES} FROM stored
), called AS (
    INSERT INTO model_calls ({_COLUMNS}) SELECT {_VALUES} FROM stored
)"""
_OPEN_IN_SESSION: Final = _OPEN.replace("$allowed", IN_SESSION)
_OPEN_IF_UNCHANGED: Final = _OPEN.replace("$allowed", IF_UNCHANGED)
RECORD_EPOCH: Final = f"{_OPEN_IN_SESSION} SELECT view FROM stored"
RECORD_EPOCH_IF_UNCHANGED: Final = f"{_OPEN_IF_UNCHANGED} SELECT {COMPACTION_COLUMN} FROM stored"

# Variants for a request with an idempotency key: the call and its response are stored together or not at all.
_RESPONSE: Final = f", responded AS ({answers.store_cte('stored')}) SELECT"
WITH_KEY: Final = {
    RECORD_CALL: f"WITH stored AS ({RECORD_CALL}){_RESPONSE} call_id FROM stored",
    RECORD_CALL_IF_UNCHANGED: f"WITH stored AS ({RECORD_CALL_IF_UNCHANGED}){_RESPONSE} compaction FROM stored",
    RECORD_EPOCH: f"{_OPEN_IN_SESSION}{_RESPONSE} view FROM stored",
    RECORD_EPOCH_IF_UNCHANGED: f"{_OPEN_IF_UNCHANGED}{_RESPONSE} {COMPACTION_COLUMN} FROM stored",
}


async def prepare(database: Database) -> None:
    """Have Postgres prepare the statements that record calls. They store nothing: no session has the id NULL."""
    for sql in (RECORD_EPOCH, RECORD_CALL_IF_UNCHANGED, RECORD_EPOCH_IF_UNCHANGED):
        await database.fetchrow(sql, **dict.fromkeys(numbered(sql)[1]))


async def record(connection: Executor, tenant_id: UUID, made: Assembled, keep: NewResponse | None = None) -> bool:
    """Store the call of an assembled context, the epoch it opened, and the response under its request's key.

    Return False, and store nothing, if another epoch was opened meanwhile or the session is gone. Raises
    AlreadyAnswered, and stores nothing, if the key has been used.
    """
    sql = RECORD_CALL if made.epoch is None else RECORD_EPOCH
    return await _one_statement(connection, sql, _values(made, tenant_id), keep) is not None


async def _one_statement(
    connection: Executor, sql: str, values: Mapping[str, object], keep: NewResponse | None
) -> asyncpg.Record | None:
    """Run one of the statements above; return None if it stored nothing."""
    if keep is None:
        return await connection.fetchrow(sql, **values)
    try:
        return await connection.fetchrow(WITH_KEY[sql], **values, **answers.store_parameters(*keep))
    except asyncpg.UniqueViolationError as error:
        if answers.is_key_conflict(error):
            raise AlreadyAnswered from None
        raise


async def record_if_unchanged(
    connection: Executor, tenant_id: UUID, made: Assembled, cover: CoverBounds | None, keep: NewResponse | None = None
) -> str | None:
    """Store the same as `record`, if the held view that the context was made from is unchanged.

    `cover`: how far live summaries may reach without making the view out of date; None if nothing was dropped that they
    could cover. Return the session's compaction state. It is read again only if the held view's is not `none`;
    otherwise it is `none`. Return None, and store nothing, if the view is out of date. Raises AlreadyAnswered, and
    stores nothing, if the key has been used.
    """
    held, estimator = made.inputs.loaded, made.inputs.counter.estimator.name
    conditions = {
        "held_epoch": held.epoch,
        "version": held.version,
        "learned_version": held.learned_version,
        "calibration_version": next((c.version for c in held.calibrations if c.estimator == estimator), 0),
        "estimator": estimator,
        "last_breakpoints": list(held.last_breakpoints) if FORMATS[made.call.format].marked else None,
        "compacting": held.compaction != "none",
        **(dict.fromkeys(CoverBounds._fields) if cover is None else cover._asdict()),
    }
    sql = RECORD_CALL_IF_UNCHANGED if made.epoch is None else RECORD_EPOCH_IF_UNCHANGED
    row = await _one_statement(connection, sql, _values(made, tenant_id) | conditions, keep)
    return None if row is None else str(row["compaction"])


def _epoch_values(epoch: NewEpoch) -> dict[str, object]:
    """Return the parameters of an epoch."""
    settings, frontier = epoch.view_row, epoch.frontier
    return parameters(epoch, "head", "view_row", "target") | {
        "view_policy_name": settings.policy[0],
        "view_policy_version": settings.policy[1],
        "view_model": settings.model,
        "view_window_tokens": settings.window_tokens,
        "view_target": epoch.target,
        "frontier": texts.dumps(to_json(frontier), clear=LEGIBLE_IN_FRONTIER),
        "floor": frontier.floor,
        "kept": list(frontier.kept),
        "stubbed": [stub.seq for stub in frontier.stubs if not stub.chars],
        "folded": [fold.id for fold in frontier.folds],
        "evictions": canonical_json([eviction_row(row) for row in epoch.evictions]),
        "evicted": [asyncpg.Range(first, last + 1) for first, last in epoch.evicted],
    }


def _values(made: Assembled, tenant_id: UUID) -> dict[str, object]:
    """Return the parameters of a call, and of the epoch that it opened, if any."""
    call, loaded, manifest = made.call, made.inputs.loaded, made.call.manifest
    values = parameters(call, "policy") | {
        "session_id": loaded.session_id,
        "tenant_id": tenant_id,
        "created_at": loaded.created_at,
        "policy_name": call.policy[0],
        "policy_version": call.policy[1],
        "manifest": texts.dumps(manifest_json(manifest)),
        "evicted_class": call.evicted_tokens.bit_length(),
        **manifest_columns(manifest),
    }
    return values if made.epoch is None else values | _epoch_values(made.epoch)


def manifest_columns(manifest: CallManifest) -> dict[str, Any]:
    """Return the manifest values that statements read, by their columns in the call's record."""
    return {
        "clock": manifest.now,
        "window_tokens": manifest.window,
        "outside_tokens": manifest.outside,
        "tools_tokens": manifest.by_source.get("tools", 0),
        "system_tokens": manifest.by_source.get("system", 0),
        "ephemeral_tokens": manifest.by_source.get("ephemeral", 0),
        "breakpoint_tokens": [point.tokens for point in manifest.breakpoints],
        "breakpoint_blocks": [point.blocks for point in manifest.breakpoints],
    }
