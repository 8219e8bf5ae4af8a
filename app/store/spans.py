"""What a compaction stands on: a session as it is now, the oldest part that no summary covers, and the newest part."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import asyncpg

from app.core.log.event import Event
from app.core.log.segments import SEQ_MAX, Segments, ancestry, clip, shared_to, whole
from app.core.tokens.calibration import Calibration, Reported
from app.core.tokens.learned import Learned
from app.core.view.loaded import ViewRow
from app.store import calibrations, lineage, visibility
from app.store.compactions import DEMAND_OF_VIEWS, Demand, demand
from app.store.engine import Connection, Database
from app.store.views import EVENT_COLUMNS, event, reported, settings

EVENTS_MAX: int = 20_000
CALLS_MAX: Final = 1_000
"""How many calls and results are looked through for what was modified in the part of a log that is not read."""
MAIN: Final = "main"


@dataclass(frozen=True, slots=True)
class Viewed:
    """A view's settings (`row`; None before its first context), and what its next budget goes by, as in `Loaded`.

    `calibrations` are not read with it.
    """

    name: str
    row: ViewRow | None = None
    outside_tokens: int | None = None
    calibrations: tuple[Calibration, ...] = ()
    reported: Reported | None = None
    learned: Learned | None = None

    @property
    def epoch(self) -> int:
        """The current one; 0 while none is written."""
        return 0 if self.row is None or self.row.afresh else self.row.epoch


@dataclass(frozen=True, slots=True)
class Facts:
    """A session, how often it was redacted, and its views. `context_tokens` are the main view's, `demand` is what a
    worker looks at it for."""

    session_policy: tuple[str, int]
    session_model: str | None
    estimator: str
    head: int
    turn: int
    tokens: int
    covered_tokens: int
    redactions: int
    system_seq: int
    tools_seq: int
    context_tokens: int
    lineage: Segments
    views: tuple[Viewed, ...]
    demand: Demand

    def view(self, name: str) -> Viewed:
        """One view, also one that has not asked yet."""
        return next((one for one in self.views if one.name == name), Viewed(name))

    @property
    def main(self) -> Viewed:
        """The main view."""
        return self.view(MAIN)


async def facts(connection: Connection | Database, session_id: UUID, tenant_id: UUID) -> Facts | None:
    """None when the session is gone."""
    row = await connection.fetchrow(
        "SELECT s.policy_name, s.policy_version, s.model, s.estimator, s.head, s.turns, s.tokens, s.covered_tokens, "
        "s.redactions, s.system_seq, s.tools_seq, s.lineage_ids, s.lineage_to, s.outside_tokens, "
        "s.tokens + coalesce((SELECT carry_tokens FROM views WHERE session_id = :session_id AND view = :main), 0) "
        f"AS context_tokens, {DEMAND_OF_VIEWS} FROM sessions s "
        "WHERE s.session_id = :session_id AND s.tenant_id = :tenant_id",
        session_id=session_id,
        tenant_id=tenant_id,
        main=MAIN,
    )
    if row is None:
        return None
    views = await connection.fetch(
        "SELECT view, policy_name AS view_policy_name, policy_version AS view_policy_version, model AS view_model, "
        "window_tokens, epoch AS view_epoch, epochs, afresh, reported_call, reported_epoch, reported_head, "
        "reported_tokens, reported_counted, reported_outside, learned FROM views WHERE session_id = :session_id",
        session_id=session_id,
    )
    return Facts(
        session_policy=(row["policy_name"], row["policy_version"]),
        session_model=row["model"],
        estimator=row["estimator"],
        head=row["head"],
        turn=row["turns"],
        tokens=row["tokens"],
        covered_tokens=row["covered_tokens"],
        redactions=row["redactions"],
        system_seq=row["system_seq"] or 0,
        tools_seq=row["tools_seq"] or 0,
        context_tokens=max(0, row["context_tokens"]),
        lineage=ancestry(row["lineage_ids"], row["lineage_to"]),
        views=tuple(_viewed(one, row["outside_tokens"]) for one in views),
        demand=demand(row),
    )


def _viewed(row: asyncpg.Record, outside_tokens: int | None) -> Viewed:
    return Viewed(
        row["view"],
        settings(row),
        outside_tokens,
        reported=reported(row),
        learned=calibrations.learned(row["learned"]),
    )


async def prefix(connection: Connection | Database, session_id: UUID, known: Facts) -> tuple[Event, ...]:
    """The system prompts and the tool list that take effect."""
    log = whole(known.lineage, session_id, SEQ_MAX)
    seqs = await lineage.prompts(connection, log, known.system_seq) if known.system_seq else []
    found = [await between(connection, session_id, seq, seq) for seq in sorted({*seqs, known.tools_seq} - {0})]
    return tuple(event for events in found for event in events)


async def newest(
    connection: Connection | Database, session_id: UUID, after: int, tokens: int, segments: Segments = ()
) -> tuple[Event, ...]:
    """The events behind `after` within the last so many tokens of the log; `segments` are what a fork shares."""
    rows = list(
        await connection.fetch(
            f"SELECT {EVENT_COLUMNS} FROM events WHERE session_id = :session_id AND seq > :after AND cum_tokens > "
            "(SELECT tokens FROM sessions WHERE session_id = :session_id) - :tokens ORDER BY seq",
            session_id=session_id,
            after=after,
            tokens=tokens,
        )
    )
    last = shared_to(segments)
    if after < last and (not rows or rows[0]["seq"] == last + 1):
        total = rows[-1]["cum_tokens"] if rows else (await lineage.tokens_at(connection, segments, last))[1]
        first = await lineage.beyond(connection, segments, total - tokens) or last + 1
        rows = [*await lineage.read(connection, segments, EVENT_COLUMNS, max(first, after + 1), last), *rows]
    return _events(rows)


async def oldest(
    connection: Connection | Database, session_id: UUID, after: int, tokens: int, segments: Segments = ()
) -> tuple[Event, ...]:
    """The first events behind `after`, about so many tokens of them, and at least some; `segments` as above."""
    _, before = await lineage.tokens_at(connection, segments, after)
    if after < shared_to(segments):
        stop = await lineage.beyond(connection, whole(segments, session_id, SEQ_MAX), before + tokens) or SEQ_MAX
        return await between(connection, session_id, after + 1, max(stop - 1, after + 1))
    rows = await connection.fetch(
        f"SELECT {EVENT_COLUMNS} FROM events WHERE session_id = :session_id AND seq > :after "
        "AND (seq = :after + 1 OR cum_tokens <= :tokens + coalesce((SELECT cum_tokens FROM events "
        "WHERE session_id = :session_id AND seq = :after), :before)) ORDER BY seq LIMIT :limit",
        session_id=session_id,
        after=after,
        tokens=tokens,
        limit=EVENTS_MAX,
        before=before,
    )
    return _events(rows)


_CALLS: Final = (
    f"SELECT {EVENT_COLUMNS.removesuffix('body')} CASE WHEN type = 'tool.call' THEN body END FROM events "
    "WHERE session_id = :session_id AND seq BETWEEN :from_seq AND :to_seq AND type IN ('tool.call', 'tool.result') "
    "ORDER BY seq DESC LIMIT :limit"
)


async def calls(connection: Connection | Database, session_id: UUID, from_seq: int, to_seq: int) -> tuple[Event, ...]:
    """The newest tool calls of a span that are not hidden, and what answered them: that without its content."""
    segments = clip(whole(await lineage.of(connection, session_id), session_id, SEQ_MAX), from_seq, to_seq)
    found: list[Event] = []
    for segment in reversed(segments):
        rows = await connection.fetch(
            _CALLS,
            session_id=segment.session_id,
            from_seq=segment.from_seq,
            to_seq=segment.to_seq,
            limit=CALLS_MAX - len(found),
        )
        found = [*_events(reversed(rows)), *found]
    hidden = {one.seq for one in await visibility.current(connection, session_id) if one.hidden} if found else ()
    return tuple(event for event in found if event.seq not in hidden)


async def between(connection: Connection | Database, session_id: UUID, from_seq: int, to_seq: int) -> tuple[Event, ...]:
    """The events of a span."""
    rows = list(
        await connection.fetch(
            f"SELECT {EVENT_COLUMNS} FROM events WHERE session_id = :session_id AND seq BETWEEN :from_seq AND :to_seq "
            "ORDER BY seq LIMIT :limit",
            session_id=session_id,
            from_seq=from_seq,
            to_seq=to_seq,
            limit=EVENTS_MAX,
        )
    )
    if not rows or rows[0]["seq"] > from_seq:
        last = min(rows[0]["seq"] - 1 if rows else to_seq, from_seq + EVENTS_MAX - 1)
        rows = [*await lineage.inherited(connection, session_id, EVENT_COLUMNS, from_seq, last), *rows][:EVENTS_MAX]
    return _events(rows)


def _events(rows: Iterable[asyncpg.Record]) -> tuple[Event, ...]:
    return tuple(event(tuple(row.values())) for row in rows)


async def lock(tx: Connection, session_id: UUID, tenant_id: UUID) -> int | None:
    """How often a session was redacted, locked against appends and redactions until the transaction ends; None when it
    is gone."""
    row = await tx.fetchrow(
        "SELECT redactions FROM sessions WHERE session_id = :session_id AND tenant_id = :tenant_id FOR NO KEY UPDATE",
        session_id=session_id,
        tenant_id=tenant_id,
    )
    return None if row is None else int(row["redactions"])


async def set_covered(tx: Connection, session_id: UUID, to_seq: int, segments: Segments = ()) -> None:
    """Up to where the log is covered by summaries without a hole."""
    await tx.execute(
        "UPDATE sessions SET covered_tokens = coalesce((SELECT cum_tokens FROM events WHERE session_id = :session_id "
        "AND seq = :to_seq), :shared) WHERE session_id = :session_id",
        session_id=session_id,
        to_seq=to_seq,
        shared=(await lineage.tokens_at(tx, segments, to_seq))[1],
    )
