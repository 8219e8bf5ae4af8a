"""Reads that a compaction makes: a session and its views, its prompts and tools, its newest tool calls."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

import asyncpg

from app.core import dataclass
from app.core.assembly.inputs import BudgetFacts, ViewRow
from app.core.log.event import Event
from app.store import calibrations, event_log, visibility
from app.store.compactions import DEMAND_COLUMNS, CompactionDemand
from app.store.engine import Connection, Executor
from app.store.event_log import SessionLog, log_of
from app.store.ids import SessionRef
from app.store.rows import decode, parameters
from app.store.views import reported, settings

EVENTS_MAX: Final = 20_000
"""Limit of the events read for one summary."""
CALLS_MAX: Final = 500
"""Limit of the tool calls and errors loaded from the part of a log whose other events are not loaded, to find modified
files."""
REQUESTS_MAX: Final = 2
"""The number of a turn's first user messages, and of its last, that a summary repeats."""
MAIN: Final = "main"


@dataclass(frozen=True, slots=True)
class ViewFacts(BudgetFacts):
    """The settings of a view (`row`; None before its first context), and the inputs of its next budget except
    `calibrations`."""

    name: str
    row: ViewRow | None = None


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """A session and its views, as a compaction needs them.

    `context_tokens` estimates the main view's next context. `decisions` is the number of the newest request that
    decided on visibility, `redactions` the count of erased events.
    """

    session_policy: tuple[str, int]
    session_model: str | None
    estimator: str
    head: int
    turn: int
    tokens: int
    covered_tokens: int
    decisions: int
    redactions: int
    system_seq: int
    tools_seq: int
    context_tokens: int
    created_at: datetime
    log: SessionLog
    views: tuple[ViewFacts, ...]
    demand: CompactionDemand

    def view(self, name: str) -> ViewFacts:
        """Return a view; one without settings if it has had no context yet."""
        return next((one for one in self.views if one.name == name), ViewFacts(name))

    @property
    def main(self) -> ViewFacts:
        """The main view."""
        return self.view(MAIN)


async def facts(connection: Executor, ref: SessionRef) -> SessionFacts | None:
    """Return the facts of a session; None if it is gone."""
    row = await connection.fetchrow(
        "SELECT s.session_id, s.policy_name, s.policy_version, s.model, s.estimator, s.turns, "
        "s.covered_tokens, s.decisions, s.redactions, s.system_seq, s.tools_seq, s.lineage_ids, s.lineage_to, "
        "s.outside_tokens, s.created_at, s.tokens + coalesce("
        "(SELECT carry_tokens FROM views WHERE session_id = :session_id AND view = :view), 0) "
        f"AS context_tokens, {DEMAND_COLUMNS} FROM sessions s "
        "WHERE s.session_id = :session_id AND s.tenant_id = :tenant_id",
        **ref._asdict(),
        view=MAIN,
    )
    if row is None:
        return None
    views = await connection.fetch(
        "SELECT view, policy_name AS view_policy_name, policy_version AS view_policy_version, model AS view_model, "
        "window_tokens, epoch AS view_epoch, epochs, afresh, reported_call, reported_epoch, reported_head, "
        "reported_tokens, reported_counted, reported_outside, learned FROM views WHERE session_id = :session_id",
        session_id=ref.session_id,
    )
    return decode(
        SessionFacts,
        row,
        session_policy=(row["policy_name"], row["policy_version"]),
        session_model=row["model"],
        turn=row["turns"],
        context_tokens=max(0, row["context_tokens"]),
        log=log_of(row),
        views=tuple(_view(one, row["outside_tokens"]) for one in views),
        demand=decode(CompactionDemand, row),
    )


def _view(row: asyncpg.Record, outside_tokens: int | None) -> ViewFacts:
    view = settings(row)
    return ViewFacts(
        row["view"],
        view,
        epoch=0 if view is None or view.replan_cause else view.epoch,
        outside_tokens=outside_tokens,
        reported=reported(row),
        learned=calibrations.learned(row["learned"]),
    )


async def prefix(connection: Executor, known: SessionFacts) -> tuple[Event, ...]:
    """Return the system prompts and the tool list in effect."""
    seqs = await event_log.prompts(connection, known.log, known.system_seq)
    return await event_log.events_at(connection, known.log, {*seqs, known.tools_seq} - {0})


async def calls(connection: Executor, session_id: UUID, from_seq: int, to_seq: int) -> tuple[Event, ...]:
    """Return the newest tool calls of a span that are not hidden, and the errors among its results, without bodies."""
    found = await event_log.tool_calls(connection, SessionLog(session_id), from_seq, to_seq, CALLS_MAX)
    hidden = {one.seq for one in await visibility.current(connection, session_id) if one.hidden} if found else ()
    return tuple(event for event in found if event.seq not in hidden)


async def split_turn(connection: Executor, log: SessionLog, seq: int) -> int | None:
    """Return the turn of an event if the next event is of the same turn; None for the last event of a turn."""
    rows = await event_log.read(connection, log, "seq, turn", seq, seq + 1)
    return int(rows[0]["turn"]) if len(rows) == 2 and rows[0]["turn"] == rows[1]["turn"] else None


async def requests(
    connection: Executor, log: SessionLog, from_seq: int, to_seq: int, split: int | None
) -> tuple[Event, ...]:
    """Return the user's first and last messages of the turns that a span covers only in part: the one in which it
    begins, and `split`, in which it ends."""
    begun = await split_turn(connection, log, from_seq - 1) if from_seq > 1 else None
    seqs: set[int] = set()
    for turn, last in ((begun, from_seq - 1), (split, to_seq)):
        if turn is not None:
            seqs.update(await _user_message_seqs(connection, log, turn, last))
    return await event_log.events_at(connection, log, seqs)


# One range of an index from either end, however long the turn is.
_USER_MESSAGES: Final = " UNION ".join(
    "(SELECT seq FROM events WHERE session_id = :session_id AND type = 'user.message' AND turn = :turn "
    f"AND seq BETWEEN :from_seq AND :to_seq ORDER BY seq {order} LIMIT :limit)"
    for order in ("ASC", "DESC")
)


async def _user_message_seqs(connection: Executor, log: SessionLog, turn: int, to_seq: int) -> Sequence[int]:
    """Return the seqs of the user's first and last REQUESTS_MAX messages of a turn, up to `to_seq`."""
    seqs: list[int] = []
    for segment in await event_log.segments(connection, log, to_seq):
        rows = await connection.fetch(_USER_MESSAGES, **parameters(segment), turn=turn, limit=REQUESTS_MAX)
        seqs += [row["seq"] for row in rows]
    seqs.sort()
    return seqs if len(seqs) <= 2 * REQUESTS_MAX else [*seqs[:REQUESTS_MAX], *seqs[-REQUESTS_MAX:]]


async def set_covered(tx: Connection, log: SessionLog, to_seq: int) -> int:
    """Store the tokens of the log through `to_seq`, the last seq of its cover; return them."""
    row = await tx.fetchrow(
        "UPDATE sessions SET covered_tokens = coalesce((SELECT cum_tokens FROM events WHERE session_id = :session_id "
        "AND seq = :to_seq), :shared) WHERE session_id = :session_id RETURNING covered_tokens",
        session_id=log.session_id,
        to_seq=to_seq,
        shared=await event_log.shared_tokens(tx, log, to_seq),
    )
    return 0 if row is None else int(row["covered_tokens"])
