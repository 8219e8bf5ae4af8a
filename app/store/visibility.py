"""Decisions to hide, show and pin events. All are stored; the newest about an event applies."""

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from app.core.assembly.visibility import VisibilityDecision
from app.core.plan.reducers.visibility import NewestDecision
from app.store import texts
from app.store.engine import Connection, Executor
from app.store.sessions import SessionRow

COLUMNS: Final = "seq, decision, action = 'hide', replacement, path"

# Of two decisions about one event in one request, the one that hides it counts as the newest.
_NEWEST: Final = """
    SELECT DISTINCT ON (seq) * FROM visibility WHERE session_id = :session_id AND action IN ('hide', 'show') {more}
    ORDER BY seq, decision DESC, action"""
_CURRENT: Final = _NEWEST.format(more="")
CURRENT_UNTIL: Final = _NEWEST.format(more="AND (SELECT decisions FROM h) > 0 AND head <= (SELECT at_head FROM h)")
"""The newest decisions as of a head, for a statement whose `h` is the session's row with its `at_head`."""


def decided(record: Sequence[Any]) -> NewestDecision:
    """Decode a row of COLUMNS."""
    seq, decision, hides, replacement, path = record
    return NewestDecision(seq, decision, hides, None if replacement is None else texts.open_text(replacement), path)


async def current(connection: Executor, session_id: UUID) -> tuple[NewestDecision, ...]:
    """Return the newest decision about each event that was ever hidden or shown."""
    rows = await connection.fetch(f"SELECT {COLUMNS} FROM ({_CURRENT}) AS newest ORDER BY seq", session_id=session_id)
    return tuple(decided(tuple(row.values())) for row in rows)


async def until(connection: Executor, session_id: UUID, head: int, to_seq: int) -> tuple[NewestDecision, ...]:
    """Return the newest decisions as of the head `head`, about the events up to `to_seq`."""
    newest = _NEWEST.format(more="AND head <= :head AND seq <= :to_seq")
    sql = f"SELECT {COLUMNS} FROM ({newest}) AS newest ORDER BY seq"
    rows = await connection.fetch(sql, session_id=session_id, head=head, to_seq=to_seq)
    return tuple(decided(tuple(row.values())) for row in rows)


async def record(tx: Connection, session: SessionRow, decisions: Sequence[VisibilityDecision]) -> None:
    """Store one request's decisions under the next number, and apply the pins among them. `session` must be locked."""
    number = session.decisions + 1
    await tx.execute(
        "INSERT INTO visibility (session_id, tenant_id, decision, head, action, seq, replacement, path) "
        "SELECT :session_id, :tenant_id, :number, :head, * "
        "FROM unnest(:actions::text[], :seqs::bigint[], :replacements::text[], :paths::text[]) RETURNING 1",
        **session.ref._asdict(),
        number=number,
        head=session.state.head,
        actions=[one.action for one in decisions],
        seqs=[one.seq for one in decisions],
        replacements=[None if one.replacement is None else texts.seal_text(one.replacement) for one in decisions],
        paths=[one.path for one in decisions],
    )
    await tx.execute(
        "UPDATE sessions SET decisions = :number, pinned_seqs = ARRAY((SELECT unnest(pinned_seqs) "
        "EXCEPT SELECT unnest(:unpinned::bigint[])) UNION SELECT unnest(:pinned::bigint[]) ORDER BY 1) "
        "WHERE session_id = :session_id",
        session_id=session.session_id,
        number=number,
        unpinned=[one.seq for one in decisions if one.action == "unpin"],
        pinned=[one.seq for one in decisions if one.action == "pin"],
    )


async def redact_decisions(tx: Connection, session_id: UUID, seq: int) -> None:
    """Erase the replacements and paths of decisions about a redacted event, which may quote it."""
    await tx.execute(
        "UPDATE visibility SET replacement = NULL, path = NULL WHERE session_id = :session_id AND seq = :seq",
        session_id=session_id,
        seq=seq,
    )
