"""Reports of calls' outcomes, the only part of a call's record that changes."""

from collections.abc import Mapping
from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

import asyncpg

from app.core import dataclass
from app.core.log.events import Json
from app.core.tokens.calibration import Reported
from app.core.tokens.learned import Learned
from app.store import calibrations, texts
from app.store.calibrations import CalibrationSamples
from app.store.engine import Connection, Executor
from app.store.ids import SessionRef
from app.store.rows import Row, columns, decode, parameters
from app.store.views import reported


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


@dataclass(frozen=True, slots=True)
class ReportedView:
    """The settings of a view, and the values that reports change: its target, what it has learned from its own calls,
    and the usage of its last call with a report."""

    policy: tuple[str, int]
    model: str | None
    window_tokens: int
    target: int
    learned: Learned | None
    learned_version: int
    reported: Reported | None

    @property
    def settings(self) -> tuple[tuple[str, int], str | None, int]:
        """The policy, the model and the window that the target is for."""
        return self.policy, self.model, self.window_tokens


_USAGE: Final = {
    "reported_call": "call_id",
    "reported_epoch": "epoch",
    "reported_head": "head",
    "reported_tokens": "tokens",
    "reported_counted": "counted",
    "reported_outside": "outside",
}
"""The columns of a view's reported usage, with the fields of Reported."""
_CHANGED: Final = ("target", "learned", "learned_version", *_USAGE)
VIEW: Final = ", ".join(
    (
        *(f"v.{name} AS view_{name}" for name in ("policy_name", "policy_version", "model", "window_tokens", "target")),
        *(f"v.{name}" for name in _CHANGED if name != "target"),
    )
)
"""The columns of a ReportedView, from the view `v`."""
LOCK_VIEW: Final = f"SELECT {VIEW} FROM views v WHERE v.session_id = :session_id AND v.view = :view FOR NO KEY UPDATE"
CHANGE_VIEW: Final = (
    f"UPDATE views SET {', '.join(f'{name} = :{name}' for name in _CHANGED)} "
    "WHERE session_id = :session_id AND view = :view"
)
_VIEW_CHANGED: Final = f"changed AS ({CHANGE_VIEW})"
_MODEL_TAUGHT: Final = f"taught AS ({calibrations.SAVE})"
STORES: Final = {
    (False, False): STORE,
    (True, False): f"WITH {_VIEW_CHANGED} {STORE}",
    (False, True): f"WITH {_MODEL_TAUGHT} {STORE}",
    (True, True): f"WITH {_VIEW_CHANGED}, {_MODEL_TAUGHT} {STORE}",
}
"""Statements that store an outcome, by whether they change the view, and whether they change the calibration."""
_READ: Final = ("policy_name", "policy_version", "model", "window_tokens", "target", "learned_version", "reported_call")
_FREE: Final = f"""
WITH free AS (
    SELECT FROM model_calls m JOIN views v ON v.session_id = m.session_id AND v.view = :view
    WHERE m.session_id = :session_id AND m.call_id = :call_id AND m.reported_at IS NULL
    AND {" AND ".join(f"v.{name} IS NOT DISTINCT FROM :read_{name}" for name in _READ)} FOR NO KEY UPDATE
), changed AS ({CHANGE_VIEW} AND EXISTS (SELECT FROM free))"""
_STORE_IF_FREE: Final = f"""{STORE} AND EXISTS (SELECT FROM free)
RETURNING created_at, now() AS at, (
    SELECT p.call_id FROM model_calls p WHERE p.session_id = :session_id AND p.view = :view AND p.call_id < :call_id
    ORDER BY p.call_id DESC LIMIT 1) AS previous,"""
STORES_IF_UNCHANGED: Final = {
    False: f"{_FREE} {_STORE_IF_FREE} false AS taught",
    True: f"""{_FREE}, known AS (
    SELECT FROM free, calibrations c WHERE {calibrations.OF_KEY} AND c.updated_at = :taught_at
    FOR UPDATE OF c SKIP LOCKED
), taught AS ({calibrations.SAVE} AND EXISTS (SELECT FROM known))
{_STORE_IF_FREE} EXISTS (SELECT FROM known) AS taught
""",
}
"""Statements that store an outcome if the call has none yet and its view is as it was read. The key is whether they
also store the calibration; one that has changed since, or is locked, is left as it is."""


def reported_view(row: Row) -> ReportedView | None:
    """Decode a row of VIEW; None if there is no view."""
    if row["view_window_tokens"] is None:
        return None
    return ReportedView(
        (row["view_policy_name"], row["view_policy_version"]),
        row["view_model"],
        row["view_window_tokens"],
        row["view_target"],
        calibrations.learned(row["learned"]),
        row["learned_version"],
        reported(row),
    )


class OutcomeChanges(NamedTuple):
    """An outcome, and the view and the calibration that it changes, each with its name."""

    outcome: ReportedOutcome
    view: tuple[str, ReportedView] | None = None
    model: tuple[str, CalibrationSamples] | None = None


class Stored(NamedTuple):
    """The result of `store_outcome_if_unchanged`.

    `created_at` is the time of the call's record, `at` that of this transaction and thus the calibration's new
    `updated_at`. `previous` is the view's call before, if any; `taught`: the calibration was stored.
    """

    created_at: datetime
    at: datetime
    previous: UUID | None
    taught: bool


async def store_outcome_locked(tx: Connection, ref: SessionRef, call_id: UUID, changes: OutcomeChanges) -> None:
    """Store the outcome of a call and its changes. The transaction must hold the locks of `audit.to_report`."""
    sql = STORES[changes.view is not None, changes.model is not None]
    await tx.execute(sql, **_values(ref, call_id, changes))


async def store_outcome_if_unchanged(
    on: Executor, ref: SessionRef, call_id: UUID, changes: OutcomeChanges, before: ReportedView
) -> Stored | None:
    """Store the outcome of a call and its changes, which include the view, in one statement. No locks need be held.

    Returns None, with nothing stored, if the call has an outcome already or the stored view differs from `before`.
    """
    values, model = _values(ref, call_id, changes), changes.model
    settings = (*before.policy, before.model, before.window_tokens, before.target)
    read = (*settings, before.learned_version, getattr(before.reported, "call_id", None))
    values |= {f"read_{name}": value for name, value in zip(_READ, read, strict=True)}
    if model is not None:
        values["taught_at"] = model[1].updated_at
    row = await on.fetchrow(STORES_IF_UNCHANGED[model is not None], **values)
    return None if row is None else Stored(*row)


def _values(ref: SessionRef, call_id: UUID, changes: OutcomeChanges) -> dict[str, object]:
    outcome, view, model = changes
    stored_error = None if outcome.error is None else texts.dumps(outcome.error)
    values = {"session_id": ref.session_id, "call_id": call_id} | parameters(outcome) | {"error": stored_error}
    if view is not None:
        name, changed = view
        values |= {"view": name} | {column: getattr(changed, column) for column in _CHANGED if column not in _USAGE}
        values |= {column: getattr(changed.reported, field, None) for column, field in _USAGE.items()}
        values["learned"] = None if changed.learned is None else calibrations.learned_json(changed.learned)
    if model is not None:
        values |= calibrations.values(ref.tenant_id, *model)
    return values
