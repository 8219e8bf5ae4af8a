"""The lines of a session: which one is current or was used, and the hash chains by which a conversation is found."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final
from uuid import UUID

from app.core.log.conversation import Link, Tip, links
from app.core.log.segments import line_of, session_of
from app.store import event_log, sessions, texts
from app.store.engine import Connection, Database, Executor
from app.store.ids import SessionRef, session_ref
from app.store.rows import columns, decode
from app.store.sessions import SessionRow


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


async def set_current_line(tx: Connection, root_id: UUID, line: str | None) -> None:
    """Make a line the session's current line; None is its first. The session must be locked."""
    await tx.execute("UPDATE sessions SET line = :line WHERE session_id = :session_id", session_id=root_id, line=line)


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


async def next_number(tx: Connection, root_id: UUID) -> int:
    """Return the number of a session's next line. The session must be locked."""
    row = await tx.fetchrow("SELECT max(number) AS newest FROM sessions WHERE root = :session_id", session_id=root_id)
    return 1 + ((row["newest"] if row is not None else None) or 1)


async def add(tx: Connection, session_id: UUID, root_id: UUID, number: int, tip: Tip) -> None:
    """Make a new row a line of a session."""
    await tx.execute(
        "UPDATE sessions SET root = :root, number = :number, chained_seq = :seq, chained = :chained, chain_tip = :hash "
        "WHERE session_id = :session_id",
        session_id=session_id,
        root=root_id,
        number=number,
        seq=tip.seq,
        chained=tip.number,
        hash=tip.hash,
    )


PAGE: Final = 1_000
HASH_ON_LOOP_EVENTS: Final = 200
HASH_ON_LOOP_CHARS: Final = 64 * 1024
"""Limits of events, and of characters of their text, hashed on the event loop; more are hashed in a thread."""


async def extend_chain(tx: Connection, root_id: UUID, row: SessionRow) -> SessionRow:
    """Extend the chain of a locked line to its head, and return the line with its new tip."""
    while row.tip.seq < row.state.head:
        first = row.tip.seq + 1
        last = min(row.state.head, first + PAGE - 1)
        rows = await event_log.read(tx, row.log, "seq, body", first, last)
        bodies = [record["body"] for record in rows]
        small = len(rows) <= HASH_ON_LOOP_EVENTS and sum(map(len, bodies)) <= HASH_ON_LOOP_CHARS
        found = _links(bodies, row.tip.hash) if small else await asyncio.to_thread(_links, bodies, row.tip.hash)
        seqs = [rows[link.place]["seq"] for link in found]
        row = await add_links(tx, root_id, row, seqs, [link.hash for link in found], last)
    return row


def _links(bodies: Sequence[str], start: bytes) -> list[Link]:
    return links(map(texts.loads, bodies), start)


ADD_LINKS: Final = (
    "INSERT INTO chain (session_id, line, seq, tenant_id, number, hash) "
    "SELECT s.session_id, :line_session_id, l.seq, s.tenant_id, :number + l.n, l.hash FROM sessions s, "
    "unnest(:seqs::bigint[], :hashes::bytea[]) WITH ORDINALITY AS l(seq, hash, n) "
    "WHERE s.session_id = :session_id"
)
EXTEND_CHAIN: Final = (
    "UPDATE sessions SET chained_seq = :head, chained = :chained, chain_tip = :tip WHERE session_id = :line_session_id"
)
ADD_AND_EXTEND: Final = f"WITH added AS ({ADD_LINKS}) {EXTEND_CHAIN}"


async def add_links(
    tx: Connection, root_id: UUID, row: SessionRow, seqs: Sequence[int], hashes: Sequence[bytes], head: int
) -> SessionRow:
    """Add the newest links of a line, which chain it up to `head`; return the line with its new tip."""
    tip = Tip(head, row.tip.number + len(seqs), hashes[-1] if hashes else row.tip.hash)
    await tx.execute(
        ADD_AND_EXTEND,
        session_id=root_id,
        line_session_id=row.session_id,
        number=row.tip.number,
        seqs=list(seqs),
        hashes=list(hashes),
        head=head,
        chained=tip.number,
        tip=tip.hash,
    )
    return replace(row, tip=tip)


@dataclass(frozen=True, slots=True)
class ChainEnd:
    """The event with which a stored conversation ends: its line, its seq, and the number of events up to it."""

    line: UUID
    seq: int
    number: int


LONGEST: Final = (
    "WITH found AS (SELECT line, seq, number FROM chain "
    "WHERE session_id = :session_id AND hash = ANY(:hashes::bytea[])) "
    "SELECT line, seq, number FROM found WHERE number = (SELECT max(number) FROM found)"
)


async def find_longest_chain(tx: Connection, root_id: UUID, hashes: Sequence[bytes]) -> Sequence[ChainEnd]:
    """Return the ends of the longest stored conversation with one of these hashes, one for each line that has it."""
    rows = await tx.fetch(LONGEST, session_id=root_id, hashes=list(hashes))
    return [ChainEnd(row["line"], row["seq"], row["number"]) for row in rows]


async def with_tip(tx: Connection, root_ref: SessionRef, number: int, hash: bytes) -> SessionRow | None:
    """Return the newest line whose chain of `number` events ends with this hash, locked; None if there is none."""
    row = await tx.fetchrow(
        f"SELECT external_id FROM sessions WHERE session_id IN ({LINE_KEYS}) "
        "AND chained = :chained AND chain_tip = :hash ORDER BY number DESC LIMIT 1",
        **root_ref._asdict(),
        chained=number,
        hash=hash,
    )
    return None if row is None else await sessions.get_locked(tx, root_ref.tenant_id, row["external_id"])


async def unchained_lines(tx: Connection, root_ref: SessionRef) -> list[str]:
    """Return the names of a session's lines that are not chained up to their heads, oldest first."""
    rows = await tx.fetch(
        f"SELECT external_id FROM sessions WHERE session_id IN ({LINE_KEYS}) AND chained_seq < head ORDER BY number",
        **root_ref._asdict(),
    )
    return [row["external_id"] for row in rows]


TIP: Final = (
    "SELECT number, hash FROM chain WHERE session_id = :session_id AND line = :line AND seq <= :seq "
    "ORDER BY seq DESC LIMIT 1"
)


async def tip_at(tx: Connection, root: SessionRow, row: SessionRow, seq: int) -> Tip:
    """Return the tip of a line's chain when its head was `seq`, from the links stored so far."""
    if seq >= row.tip.seq:
        return row.tip
    to_seq = seq
    async for line in _line_and_parents(tx, root, row):
        found = await tx.fetchrow(TIP, session_id=root.session_id, line=line.session_id, seq=to_seq)
        if found is not None:
            return Tip(seq, found["number"], bytes(found["hash"]))
        to_seq = min(to_seq, line.parent[1]) if line.parent else 0
    return Tip(seq)


async def chained_seqs(tx: Connection, root: SessionRow, row: SessionRow) -> list[int]:
    """Return the seqs of the chained events of a line, in order."""
    found: list[int] = []
    to_number = row.tip.number
    async for line in _line_and_parents(tx, root, row):
        rows = await tx.fetch(
            "SELECT seq, number FROM chain WHERE session_id = :session_id AND line = :line AND number <= :to_number "
            "ORDER BY seq",
            session_id=root.session_id,
            line=line.session_id,
            to_number=to_number,
        )
        found = [*(one["seq"] for one in rows), *found]
        to_number = rows[0]["number"] - 1 if rows else to_number
        if not to_number:
            break
    return found


async def _line_and_parents(tx: Connection, root: SessionRow, row: SessionRow) -> AsyncIterator[SessionRow]:
    """Yield a line, the line of the same session that it branched from, and so on."""
    line: SessionRow | None = row
    while line is not None:
        yield line
        if line.parent is None or session_of(line.parent[0]) != root.external_id:
            return
        line = await sessions.find(tx, session_ref(root.tenant_id, line.parent[0]))
