"""Outcomes of calls, reported after they were made: the only part of a call's record that changes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import asyncpg

from app.core.log.events import Json
from app.core.tokens.calibration import Reported
from app.store import calibrations, texts
from app.store.calibrations import CalibrationSamples
from app.store.engine import Connection
from app.store.ids import SessionRef
from app.store.rows import Row, columns, decode, parameters


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
    """The settings of a view, and the values that reports change: its target, its learned calibration as stored JSON,
    and the usage of its last call with a report."""

    policy: tuple[str, int]
    model: str | None
    window_tokens: int
    target: int
    learned: str | None
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


def reported_view(row: Row) -> ReportedView | None:
    """Decode a row of VIEW; None if there is no view."""
    if row["view_window_tokens"] is None:
        return None
    reported = None
    if row["reported_call"] is not None:
        reported = Reported(**{name: row[column] for column, name in _USAGE.items()})
    return ReportedView(
        (row["view_policy_name"], row["view_policy_version"]),
        row["view_model"],
        row["view_window_tokens"],
        row["view_target"],
        row["learned"],
        row["learned_version"],
        reported,
    )


async def store(
    tx: Connection,
    ref: SessionRef,
    call_id: UUID,
    outcome: ReportedOutcome,
    view: tuple[str, ReportedView] | None,
    model: tuple[str, CalibrationSamples] | None,
) -> None:
    """Store the outcome of a call, and the changed view and calibration of its model, each with its name.

    This transaction must have locked all of them.
    """
    stored_error = None if outcome.error is None else texts.dumps(outcome.error)
    values = {"session_id": ref.session_id, "call_id": call_id} | parameters(outcome) | {"error": stored_error}
    if view is not None:
        name, changed = view
        values |= {"view": name} | {column: getattr(changed, column) for column in _CHANGED if column not in _USAGE}
        values |= {column: getattr(changed.reported, field, None) for column, field in _USAGE.items()}
    if model is not None:
        values |= calibrations.values(ref.tenant_id, *model)
    await tx.execute(STORES[view is not None, model is not None], **values)
