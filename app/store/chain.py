"""The hash chains of a session's lines, by which a client's conversation is found."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from app.core.log.conversation import Link, Tip, links
from app.core.log.segments import session_of
from app.store import event_log, sessions, texts
from app.store.engine import Connection
from app.store.ids import SessionRef, session_ref
from app.store.lines import LINE_KEYS
from app.store.sessions import SessionRow

PAGE: Final = 1_000
HASH_ON_LOOP_EVENTS: Final = 200
HASH_ON_LOOP_CHARS: Final = 64 * 1024
"""Limits of events, and of characters of their text, hashed on the event loop; more are hashed in a thread."""


async def extend(tx: Connection, root: UUID, row: SessionRow) -> SessionRow:
    """Extend the chain of a locked line to its head, and return the line with its new tip."""
    while row.tip.seq < row.state.head:
        first = row.tip.seq + 1
        last = min(row.state.head, first + PAGE - 1)
        rows = await event_log.read(tx, row.log, "seq, body", first, last)
        bodies = [record["body"] for record in rows]
        small = len(rows) <= HASH_ON_LOOP_EVENTS and sum(map(len, bodies)) <= HASH_ON_LOOP_CHARS
        found = _links(bodies, row.tip.hash) if small else await asyncio.to_thread(_links, bodies, row.tip.hash)
        seqs = [rows[link.place]["seq"] for link in found]
        row = await add(tx, root, row, seqs, [link.hash for link in found], last)
    return row


def _links(bodies: Sequence[str], start: bytes) -> list[Link]:
    return links(map(texts.loads, bodies), start)


ADD: Final = (
    "INSERT INTO chain (session_id, line, seq, tenant_id, number, hash) "
    "SELECT s.session_id, :line_session_id, l.seq, s.tenant_id, :number + l.n, l.hash FROM sessions s, "
    "unnest(:seqs::bigint[], :hashes::bytea[]) WITH ORDINALITY AS l(seq, hash, n) "
    "WHERE s.session_id = :session_id"
)
EXTEND: Final = (
    "UPDATE sessions SET chained_seq = :head, chained = :chained, chain_tip = :tip WHERE session_id = :line_session_id"
)
ADD_AND_EXTEND: Final = f"WITH added AS ({ADD}) {EXTEND}"


async def add(
    tx: Connection, root: UUID, row: SessionRow, seqs: Sequence[int], hashes: Sequence[bytes], head: int
) -> SessionRow:
    """Add the newest links of a line, which chain it up to `head`; return the line with its new tip."""
    tip = Tip(head, row.tip.number + len(seqs), hashes[-1] if hashes else row.tip.hash)
    await tx.execute(
        ADD_AND_EXTEND,
        session_id=root,
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
class Found:
    """An event of a line, with the number of the conversation's events up to it."""

    line: UUID
    seq: int
    number: int


LONGEST: Final = (
    "WITH found AS (SELECT line, seq, number FROM chain "
    "WHERE session_id = :session_id AND hash = ANY(:hashes::bytea[])) "
    "SELECT line, seq, number FROM found WHERE number = (SELECT max(number) FROM found)"
)


async def find_longest(tx: Connection, root: UUID, hashes: Sequence[bytes]) -> Sequence[Found]:
    """Return where the longest of the conversations with these hashes ends; empty if none is found."""
    rows = await tx.fetch(LONGEST, session_id=root, hashes=list(hashes))
    return [Found(row["line"], row["seq"], row["number"]) for row in rows]


async def with_tip(tx: Connection, root: SessionRef, number: int, tip: bytes) -> SessionRow | None:
    """Return the newest line of a session whose chain ends with this hash, locked; None if there is none."""
    row = await tx.fetchrow(
        f"SELECT external_id FROM sessions WHERE session_id IN ({LINE_KEYS}) "
        "AND chained = :number AND chain_tip = :tip ORDER BY number DESC LIMIT 1",
        **root._asdict(),
        number=number,
        tip=tip,
    )
    return None if row is None else await sessions.get_locked(tx, root.tenant_id, row["external_id"])


async def unchained_lines(tx: Connection, root: SessionRef) -> list[str]:
    """Return the names of a session's lines that are not chained up to their heads, oldest first."""
    rows = await tx.fetch(
        f"SELECT external_id FROM sessions WHERE session_id IN ({LINE_KEYS}) AND chained_seq < head ORDER BY number",
        **root._asdict(),
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
    most = seq
    async for line in _line_and_parents(tx, root, row):
        found = await tx.fetchrow(TIP, session_id=root.session_id, line=line.session_id, seq=most)
        if found is not None:
            return Tip(seq, found["number"], bytes(found["hash"]))
        most = min(most, line.parent[1]) if line.parent else 0
    return Tip(seq)


async def seqs(tx: Connection, root: SessionRow, row: SessionRow) -> list[int]:
    """Return the seqs of the chained events of a line, in order."""
    found: list[int] = []
    most = row.tip.number
    async for line in _line_and_parents(tx, root, row):
        rows = await tx.fetch(
            "SELECT seq, number FROM chain WHERE session_id = :session_id AND line = :line AND number <= :most "
            "ORDER BY seq",
            session_id=root.session_id,
            line=line.session_id,
            most=most,
        )
        found = [*(one["seq"] for one in rows), *found]
        most = rows[0]["number"] - 1 if rows else most
        if not most:
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
