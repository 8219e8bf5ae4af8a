"""What was decided to be hidden, shown and pinned: every decision is kept, of an event the newest one stands."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from app.core.log.segments import SEQ_MAX, whole
from app.core.plan.reducers.visibility import NewestDecision
from app.core.recall.visibility import VisibilityDecision
from app.store import lineage
from app.store.engine import Connection, Database

COLUMNS: Final = "seq, decision, action = 'hide', replacement, path"

# $1: the session. Of one event in one request what hides or pins it came last.
_NEWEST: Final = """
    SELECT DISTINCT ON (seq) * FROM visibility WHERE session_id = $1 AND action IN ('hide', 'show') {more}
    ORDER BY seq, decision DESC, action"""
_CURRENT: Final = _NEWEST.format(more="")
CURRENT_UNTIL: Final = _NEWEST.format(more="AND (SELECT decisions FROM h) > 0 AND head <= (SELECT at_head FROM h)")
"""The same as of a head, inside a statement whose `h` is the session's row with its `at_head`."""


def decided(record: Sequence[Any]) -> NewestDecision:
    """A row of COLUMNS."""
    return NewestDecision(*record)


async def current(connection: Connection | Database, session_id: UUID) -> tuple[NewestDecision, ...]:
    """What stands of every event that was ever hidden or asked for."""
    rows = await connection.fetch(f"SELECT {COLUMNS} FROM ({_CURRENT}) AS newest ORDER BY seq", session_id)
    return tuple(decided(tuple(row.values())) for row in rows)


async def until(
    connection: Connection | Database, session_id: UUID, head: int, to_seq: int
) -> tuple[NewestDecision, ...]:
    """What stood when the log's head was `head`, of the events up to `to_seq`."""
    newest = _NEWEST.format(more="AND head <= $2 AND seq <= $3")
    rows = await connection.fetch(f"SELECT {COLUMNS} FROM ({newest}) AS newest ORDER BY seq", session_id, head, to_seq)
    return tuple(decided(tuple(row.values())) for row in rows)


async def paths(connection: Connection | Database, session_id: UUID, seqs: Iterable[int]) -> dict[int, str]:
    """The paths that events name as their own."""
    segments = whole(await lineage.of(connection, session_id), session_id, SEQ_MAX)
    rows = await lineage.read(connection, segments, "seq, body ->> 'path' AS path", 1, 0, list(seqs))
    return {row["seq"]: row["path"] for row in rows if row["path"] is not None}


@dataclass(frozen=True, slots=True)
class VisibilityState:
    """A session's head, and how many decisions it has seen."""

    head: int
    decisions: int


async def lock(tx: Connection, session_id: UUID, tenant_id: UUID) -> VisibilityState | None:
    """How a session stands, locked against appends and other decisions until the transaction ends; None without one."""
    row = await tx.fetchrow(
        "SELECT head, decisions FROM sessions WHERE session_id = $1 AND tenant_id = $2 FOR NO KEY UPDATE",
        session_id,
        tenant_id,
    )
    return None if row is None else VisibilityState(row["head"], row["decisions"])


async def record(
    tx: Connection, session_id: UUID, tenant_id: UUID, stands: VisibilityState, decisions: Sequence[VisibilityDecision]
) -> None:
    """Store decisions as the next of a session, which must be locked as it `stands`; pins change what is pinned."""
    number = stands.decisions + 1
    await tx.execute(
        "INSERT INTO visibility (session_id, tenant_id, decision, head, action, seq, replacement, path) "
        "SELECT $1, $2, $3, $4, * FROM unnest($5::text[], $6::bigint[], $7::text[], $8::text[])",
        session_id,
        tenant_id,
        number,
        stands.head,
        [one.action for one in decisions],
        [one.seq for one in decisions],
        [one.replacement for one in decisions],
        [one.path for one in decisions],
    )
    await tx.execute(
        "UPDATE sessions SET decisions = $2, pinned_seqs = ARRAY((SELECT unnest(pinned_seqs) "
        "EXCEPT SELECT unnest($3::bigint[])) UNION SELECT unnest($4::bigint[]) ORDER BY 1) WHERE session_id = $1",
        session_id,
        number,
        [one.seq for one in decisions if one.action == "unpin"],
        [one.seq for one in decisions if one.action == "pin"],
    )


async def forget(tx: Connection, session_id: UUID, seq: int) -> None:
    """Take out what decisions may quote of an event that was redacted."""
    await tx.execute(
        "UPDATE visibility SET replacement = NULL, path = NULL WHERE session_id = $1 AND seq = $2", session_id, seq
    )
