"""The search index, built from the log when a search needs it, so that appends have no additional cost.

`search_heads` has the seqs between which a session is indexed; its row is the lock for changes of that index. A session
without a row was never searched. A term is stored as a hash of the term and the session (wings/recall/search.py), so
that a search reads only its own session's entries of the single index on terms. A fork's index has its own events;
shared events are searched under the ancestors.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import asyncpg

from app.core.log.event import Event
from app.core.log.events import canonical_json
from app.core.plan.state.frontier import START, Frontier, from_json
from app.store import event_log, texts
from app.store.engine import Connection, Database
from app.store.event_log import SessionLog
from app.store.ids import SessionRef
from app.store.rows import EVENT_COLUMNS, decode, event
from app.wings.recall.search import ASKS_MARK, COUNT_MAX, TERMS_VERSION, Corpus, Hit, IndexEntry, author_marks, keys

CANDIDATES_MAX: Final = 5_000
"""Limit of the events that are scored; among more, those with the rarest terms are chosen."""
SEALED: Final = 1_000
"""Added to the version of an index whose terms are hashed with the tenant's key."""


def _version() -> int:
    return TERMS_VERSION if texts.cipher_in_use() is None else TERMS_VERSION + SEALED


def _keys(session_id: UUID, words: Iterable[str]) -> list[int]:
    cipher = texts.cipher_in_use()
    return keys(session_id.bytes if cipher is None else cipher.salt(session_id), words)


@dataclass(frozen=True, slots=True)
class IndexedRange:
    """The seqs `start` to `head`, all indexed; empty if `head` is less than `start`."""

    start: int
    head: int

    def missing(self, first: int, last: int) -> int:
        """Return how many of the seqs `first` to `last` are not indexed."""
        indexed = min(last, self.head) - max(first, self.start) + 1
        return max(0, last - first + 1) - max(0, indexed)


async def indexed_range(database: Database, session_id: UUID) -> IndexedRange | None:
    """Return the indexed range: an empty range if the index has another version, None if the session has no index."""
    row = await database.fetchrow(  # version 0: made by a redaction before a search, or incomplete after a downgrade
        "SELECT start, head, version FROM search_heads WHERE session_id = :session_id AND version > 0",
        session_id=session_id,
    )
    if row is None:
        return None
    return IndexedRange(row["start"], row["head"] if row["version"] == _version() else row["start"] - 1)


async def lock(tx: Connection, ref: SessionRef, last: int) -> IndexedRange | None:
    """Lock a session's index for the transaction; return its range, or None if there is no such session. An index that
    is missing, of another version, or empty at another place is replaced by an empty one at `last`."""
    row = await tx.fetchrow(
        "INSERT INTO search_heads (session_id, tenant_id, version, start, head) "
        "SELECT session_id, tenant_id, :version, :last::bigint + 1, :last FROM sessions "
        "WHERE session_id = :session_id AND tenant_id = :tenant_id FOR KEY SHARE "
        "ON CONFLICT (session_id) DO UPDATE SET head = search_heads.head RETURNING start, head, version",
        **ref._asdict(),
        version=_version(),
        last=last,
    )
    if row is None:
        return None
    if row["version"] == _version() and (row["head"] >= row["start"] or row["head"] == last):
        return IndexedRange(row["start"], row["head"])
    await tx.execute("DELETE FROM search WHERE session_id = :session_id", session_id=ref.session_id)
    await tx.execute(
        "UPDATE search_heads SET start = :last::bigint + 1, head = :last, entries = 0, length = 0, version = :version "
        "WHERE session_id = :session_id",
        session_id=ref.session_id,
        version=_version(),
        last=last,
    )
    return IndexedRange(last + 1, last)


_NEXT_EVENTS: Final = """
SELECT {columns} FROM (
    SELECT *, sum(tokens) OVER (ORDER BY seq {order}) - tokens AS before FROM events
    WHERE session_id = :session_id AND seq BETWEEN :first AND :last ORDER BY seq {order} LIMIT :events_max
) e WHERE before < :tokens_max ORDER BY seq {order}
"""


async def unindexed_events(
    tx: Connection, session_id: UUID, indexed: IndexedRange, first: int, last: int, events_max: int, tokens_max: int
) -> list[Event]:
    """Return the session's next events to index: those after the range, oldest first, or if it reaches `last`, those
    before it, newest first. At most `events_max`; the last may exceed `tokens_max`."""
    newer = indexed.head < last
    rows = await tx.fetch(
        _NEXT_EVENTS.format(columns=EVENT_COLUMNS, order="ASC" if newer else "DESC"),
        session_id=session_id,
        first=indexed.head + 1 if newer else first,
        last=last if newer else indexed.start - 1,
        events_max=events_max,
        tokens_max=tokens_max,
    )
    return [event(tuple(row.values())) for row in rows]


_ADD: Final = """
WITH added AS (
    INSERT INTO search (session_id, tenant_id, seq, length, terms, counts)
    SELECT :session_id, :tenant_id, seq, length, terms, counts
    FROM json_to_recordset(:entries) AS e(seq bigint, length int, terms bigint[], counts smallint[])
    RETURNING length
)
UPDATE search_heads SET start = :start, head = :head, entries = entries + (SELECT count(*) FROM added),
    length = length + (SELECT coalesce(sum(length), 0) FROM added)
WHERE session_id = :session_id
"""


async def add(tx: Connection, ref: SessionRef, entries: Sequence[IndexEntry], indexed: IndexedRange) -> None:
    """Add entries, and set the range that the index covers from now on. The transaction must hold the index's lock."""
    rows = [
        {
            "seq": one.seq,
            "length": one.length,
            "terms": _keys(ref.session_id, one.terms),
            "counts": [min(count, COUNT_MAX) for count in one.terms.values()],
        }
        for one in entries
    ]
    await tx.execute(_ADD, **ref._asdict(), start=indexed.start, head=indexed.head, entries=canonical_json(rows))


# The matches, and for each term the number of matches that contain it. If there are too many, those with the rarest
# terms are scored.
_HITS: Final = """
WITH hits AS MATERIALIZED (
    SELECT * FROM palimpsest_hits(:session_id, :terms, :to_seq, :asks, :speaks)
), holding AS (
    SELECT array_agg(held ORDER BY n) AS holding FROM (
        SELECT n, count(*) FILTER (WHERE count > 0) AS held
        FROM hits, unnest(counts) WITH ORDINALITY c(count, n) GROUP BY n) t
)
SELECT hits.seq, hits.length, hits.counts, hits.asks, hits.speaks, holding.holding, count(*) OVER () AS matches
FROM hits, holding
ORDER BY (SELECT sum(1.0 / holding.holding[n]) FROM unnest(hits.counts) WITH ORDINALITY c(count, n) WHERE count > 0)
    DESC, hits.seq DESC
LIMIT :limit
"""


@dataclass(frozen=True, slots=True)
class Matches:
    """The matches of a query: the hits to score, the corpus' statistics, and the number of all matches."""

    hits: Sequence[Hit]
    corpus: Corpus
    matches: int


async def find(database: Database, log: SessionLog, words: Sequence[str]) -> Matches:
    """Find the events of a log that have any of the terms, and the statistics of all its events."""
    hits: list[Hit] = []
    holding = [0] * len(words)
    entries = length = matches = 0
    for part in await event_log.segments(database, log):
        rows, index = await _find(database, part.session_id, part.to_seq, words)
        hits += [Hit(row["seq"], row["length"], row["counts"], row["asks"], row["speaks"]) for row in rows]
        if rows:
            holding = [one + other for one, other in zip(holding, rows[0]["holding"], strict=True)]
            matches += rows[0]["matches"]
        start = part.from_seq if index is None else max(index["start"], part.from_seq)
        if index is not None and index["head"] >= start <= part.to_seq:
            # A fork reads only part of its ancestor's log, so it gets that share of the ancestor's statistics.
            share = (part.to_seq - start + 1) / (index["head"] - start + 1)
            entries += math.ceil(index["entries"] * min(1.0, share))
            length += math.ceil(index["length"] * min(1.0, share))
    return Matches(hits, Corpus(entries, length, holding), matches)


async def _find(
    database: Database, session_id: UUID, to_seq: int, words: Sequence[str]
) -> tuple[Sequence[asyncpg.Record], asyncpg.Record | None]:
    async with database.transaction() as tx:
        [asks] = _keys(session_id, (ASKS_MARK,))
        rows = await tx.fetch(
            _HITS,
            session_id=session_id,
            terms=_keys(session_id, words),
            to_seq=to_seq,
            limit=CANDIDATES_MAX,
            asks=asks,
            speaks=_keys(session_id, author_marks(words)),
        )
        index = await tx.fetchrow(
            "SELECT start, head, entries, length FROM search_heads WHERE session_id = :session_id",
            session_id=session_id,
        )
    return rows, index


async def seqs_with_terms(database: Database, log: SessionLog, words: Sequence[str]) -> set[int]:
    """Return the seqs of events with any of the terms, and of the results of calls among them."""
    found: set[int] = set()
    for part in await event_log.segments(database, log):
        own = part.session_id
        async with database.transaction() as tx:
            await tx.execute("SET LOCAL plan_cache_mode = force_custom_plan")
            rows = await tx.fetch(
                "SELECT seq FROM palimpsest_hits(:session_id, :terms, :to_seq, 0, '{}')",
                session_id=own,
                terms=_keys(own, words),
                to_seq=part.to_seq,
            )
            found |= {row["seq"] for row in rows}
            results = await tx.fetch(
                "SELECT seq FROM events WHERE session_id = :session_id AND call_seq = ANY(:seqs::bigint[]) "
                "AND seq <= :to_seq",
                session_id=own,
                seqs=list(found),
                to_seq=part.to_seq,
            )
            found |= {row["seq"] for row in results}
    return found


async def indexed_seqs(database: Database, log: SessionLog, seqs: Sequence[int]) -> set[int]:
    """Return those of the given seqs that are in the index."""
    found: set[int] = set()
    for part in await event_log.segments(database, log):
        here = [seq for seq in seqs if part.from_seq <= seq <= part.to_seq]
        rows = await database.fetch(
            "SELECT seq FROM search WHERE session_id = :session_id AND seq = ANY(:seqs::bigint[])",
            session_id=part.session_id,
            seqs=here,
        )
        found |= {row["seq"] for row in rows}
    return found


@dataclass(frozen=True, slots=True)
class CallInputs:
    """The inputs of a recorded call."""

    call_id: UUID
    head: int
    policy: tuple[str, int]
    frontier: Frontier


async def call(database: Database, ref: SessionRef, call_id: UUID | None) -> CallInputs | None:
    """Return the session's call with this id, or without an id its main view's newest; None if there is none."""
    which = (
        "m.view = 'main' AND :call_id::uuid IS NULL ORDER BY m.epoch DESC, m.call_id DESC LIMIT 1"
        if call_id is None
        else "m.call_id = :call_id"
    )
    row = await database.fetchrow(
        "SELECT m.call_id, m.head, m.policy_name, m.policy_version, e.frontier FROM model_calls m "
        "LEFT JOIN epochs e ON e.session_id = m.session_id AND e.view = m.view AND e.epoch = m.epoch "
        f"WHERE m.session_id = :session_id AND m.tenant_id = :tenant_id AND {which}",
        **ref._asdict(),
        call_id=call_id,
    )
    if row is None:
        return None
    frontier = from_json(texts.loads(row["frontier"])) if row["frontier"] else START
    return decode(CallInputs, row, frontier=frontier)
