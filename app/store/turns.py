"""Turns, read off the events that begin and end them."""

from collections.abc import Mapping, Sequence
from uuid import UUID

from app.core.log.events import EventType, canonical_json
from app.core.log.segments import Segments
from app.core.log.turns import TurnMark
from app.store.engine import Connection, Database

# Two index ranges, whatever else the turns hold.
_MARKS = """
SELECT turn, seq, type, body ->> 'turn_id' AS turn_id FROM events
WHERE session_id = :session_id AND type IN ('turn.start', 'turn.end') AND turn BETWEEN :first AND :last
  AND seq BETWEEN :from_seq AND :to_seq
UNION ALL
SELECT turn, seq, type, body ->> 'turn_id' FROM events
WHERE session_id = :session_id AND type = 'user.message' AND turn BETWEEN :first AND :last
  AND seq BETWEEN :from_seq AND :to_seq
"""


async def marks(
    connection: Connection | Database, segments: Segments, first: int, last: int
) -> Mapping[int, Sequence[TurnMark]]:
    """For each of the turns first..last that has begun its marks, in order."""
    found: dict[int, list[TurnMark]] = {}
    for part in segments:
        rows = await connection.fetch(
            _MARKS,
            session_id=part.session_id,
            first=first,
            last=last,
            from_seq=part.from_seq,
            to_seq=part.to_seq,
        )
        for row in rows:
            found.setdefault(row["turn"], []).append(TurnMark(row["seq"], EventType(row["type"]), row["turn_id"]))
    return {turn: sorted(found[turn], key=lambda mark: mark.seq) for turn in sorted(found)}


async def tokens_through(database: Database, segments: Segments, seqs: Sequence[int]) -> Mapping[int, int]:
    """For each of these seqs the tokens of the log up to and including it."""
    through: dict[int, int] = {0: 0}
    for part in segments:
        wanted = [seq for seq in seqs if part.from_seq <= seq <= part.to_seq]
        rows = await database.fetch(
            "SELECT seq, cum_tokens FROM events WHERE session_id = :session_id AND seq = ANY(:seqs)",
            session_id=part.session_id,
            seqs=wanted,
        )
        through |= {row["seq"]: row["cum_tokens"] for row in rows}
    return through


async def remember(
    tx: Connection, session_id: UUID, tenant_id: UUID, key: str, request_sha256: bytes, facts: Mapping[str, object]
) -> None:
    """Keep what a request that appended nothing was answered from, as an append keeps it."""
    await tx.execute(
        "INSERT INTO appends (session_id, tenant_id, key, request_sha256, answer) "
        "VALUES (:session_id, :tenant_id, :key, :request_sha256, :answer)",
        session_id=session_id,
        tenant_id=tenant_id,
        key=key,
        request_sha256=request_sha256,
        answer=canonical_json(facts),
    )
