"""The lines of a session: which one is current, and on which one a call was made or a key was used."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from app.core.log.conversation import Tip
from app.core.log.segments import line_of
from app.store.engine import Connection, Database, Executor
from app.store.ids import session_ref
from app.store.rows import columns, decode


@dataclass(frozen=True, slots=True)
class LineRow:
    """A line as it is listed. `parent` is the name of the row that its log begins with, up to `parent_at`."""

    number: int
    external_id: str
    head: int
    parent: str | None
    parent_at: int | None
    created_at: datetime


async def current_line(connection: Executor, tenant_id: UUID, name: str) -> str | None:
    """Return the id of a session's current line; None if that is its first, or there is no such session."""
    row = await connection.fetchrow(
        "SELECT line FROM sessions WHERE session_id = :session_id AND tenant_id = :tenant_id",
        **session_ref(tenant_id, name)._asdict(),
    )
    return None if row is None else row["line"]


async def set_current_line(tx: Connection, root: UUID, line: str | None) -> None:
    """Make a line the session's current line; None is its first. The session must be locked."""
    await tx.execute("UPDATE sessions SET line = :line WHERE session_id = :session_id", session_id=root, line=line)


LINE_KEYS: Final = (
    "SELECT session_id FROM sessions WHERE session_id = :session_id AND tenant_id = :tenant_id "
    "UNION ALL SELECT session_id FROM sessions WHERE root = :session_id AND tenant_id = :tenant_id"
)
"""SQL of the keys of a session's lines, the first line's first."""
_NAMES: Final = LINE_KEYS.replace("SELECT session_id", "SELECT session_id, external_id")


async def names(database: Database, tenant_id: UUID, name: str) -> dict[UUID, str]:
    """Return the names of the rows of a session's lines by their keys; empty if there is no such session."""
    rows = await database.fetch(_NAMES, **session_ref(tenant_id, name)._asdict())
    return {row["session_id"]: row["external_id"] for row in rows}


OF_CALL: Final = (
    "SELECT s.external_id FROM model_calls m JOIN sessions s ON s.session_id = m.session_id "
    f"WHERE m.session_id IN ({LINE_KEYS}) AND m.call_id = :call_id ORDER BY s.number DESC"
)


async def of_call(connection: Executor, tenant_id: UUID, name: str, call_id: UUID) -> str | None:
    """Return the id of the line of a session on which a call was made; None if there is no such call."""
    rows = await connection.fetch(OF_CALL, **session_ref(tenant_id, name)._asdict(), call_id=call_id)
    return await _first(connection, tenant_id, name, [row["external_id"] for row in rows])


async def of_event(database: Database, tenant_id: UUID, name: str, event_id: str) -> tuple[str, int] | None:
    """Return the row's name and the seq of the event with a client's id on any line of a session; None without one."""
    row = await database.fetchrow(
        "SELECT s.external_id, e.seq FROM events e JOIN sessions s ON s.session_id = e.session_id "
        f"WHERE e.session_id IN ({LINE_KEYS}) AND e.event_id = :event_id ORDER BY s.number LIMIT 1",
        **session_ref(tenant_id, name)._asdict(),
        event_id=event_id,
    )
    return None if row is None else (row["external_id"], row["seq"])


async def of_key(database: Database, tenant_id: UUID, name: str, key: str) -> str | None:
    """Return the id of the line of a session on which an idempotency key was used; None if it was not."""
    rows = await database.fetch(
        "SELECT s.external_id FROM appends a JOIN sessions s ON s.session_id = a.session_id "
        f"WHERE a.session_id IN ({LINE_KEYS}) AND a.key = :key ORDER BY s.number DESC",
        **session_ref(tenant_id, name)._asdict(),
        key=key,
    )
    return await _first(database, tenant_id, name, [row["external_id"] for row in rows])


async def _first(connection: Executor, tenant_id: UUID, name: str, found: Sequence[str]) -> str | None:
    """Return the id of the session's current line if it is in `found`, else of the first there; None if it is empty."""
    if not found:
        return None
    current = await current_line(connection, tenant_id, name) if len(found) > 1 else None
    return line_of(current if current is not None and current in found else found[0])


async def page(database: Database, tenant_id: UUID, name: str, after: int, limit: int) -> Sequence[LineRow]:
    """Return the lines of a session with numbers above `after`, in order."""
    rows = await database.fetch(
        f"SELECT {columns(LineRow)} FROM sessions WHERE session_id IN ({LINE_KEYS}) AND number > :after "
        "ORDER BY number LIMIT :limit",
        **session_ref(tenant_id, name)._asdict(),
        after=after,
        limit=limit,
    )
    return [decode(LineRow, row) for row in rows]


async def next_number(tx: Connection, root: UUID) -> int:
    """Return the number of a session's next line. The session must be locked."""
    row = await tx.fetchrow("SELECT max(number) AS most FROM sessions WHERE root = :session_id", session_id=root)
    return 1 + ((row["most"] if row is not None else None) or 1)


async def add(tx: Connection, session_id: UUID, root: UUID, number: int, tip: Tip) -> None:
    """Make a new row a line of a session."""
    await tx.execute(
        "UPDATE sessions SET root = :root, number = :number, chained_seq = :seq, chained = :chained, chain_tip = :hash "
        "WHERE session_id = :session_id",
        session_id=session_id,
        root=root,
        number=number,
        seq=tip.seq,
        chained=tip.number,
        hash=tip.hash,
    )
