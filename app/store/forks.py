"""Forks of sessions: their creation, and reads of the part of their past that is stored under their ancestors.

Neither events nor the texts of summaries are copied: events are read where they are stored (`event_log.py`), and a
summary's row names the session that holds its text (`summaries.origin`).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Final
from uuid import UUID

import asyncpg

from app.core.errors import InvalidRequest
from app.core.log.appends import SessionState
from app.core.log.event import Event
from app.core.log.events import EventType, Json, canonical_json
from app.core.log.segments import (
    SEQ_MAX,
    AsOf,
    InheritableSummary,
    Segments,
    SharedEvent,
    as_of,
    clip,
    cover_at,
    shared_to,
)
from app.core.plan.state.context import NOTHING_UNREAD, Unread
from app.store import event_log, sessions
from app.store.engine import Connection, Executor
from app.store.event_log import SessionLog, events, first_seq_over, log_of, prompts, segments, turn_and_tokens_at
from app.store.ids import SessionRef, session_ref
from app.store.rows import Row, event, parameters
from app.store.sessions import SessionRow

COPIED_OF_EPOCHS: Final = (
    "tenant_id, view, epoch, head, cause, frontier, floor, kept, stubbed, tokens_before, tokens_after, created_at,"
    " folded, evictions, evicted, changed_seq, stable_tokens"
)
SUMMARY_COLUMNS: Final = (
    "tenant_id, id, depth, from_seq, to_seq, tokens, source_tokens, events, turns, split_turn, starts_at, ends_at,"
    " summarizer, model, prompt_version, degraded, sources, created_at"
)
"""Columns that a fork's rows copy; with those set per row, all but a summary's `complaints` and `superseded_by`."""


@dataclass(frozen=True, slots=True)
class Parent:
    """A locked session to fork, and its state as of the head to fork at."""

    session: SessionRow
    as_of: AsOf

    @property
    def at(self) -> int:
        """The last seq that the fork shares."""
        return self.as_of.state.head


async def lock_parent(tx: Connection, tenant_id: UUID, external_id: str, at: int | None) -> Parent:
    """Lock a session; return it as the parent of a fork at `at` (None: its head). Raises NotFound or InvalidRequest."""
    return await as_parent(tx, await sessions.get_locked(tx, tenant_id, external_id), at)


async def as_parent(tx: Connection, row: SessionRow, at: int | None) -> Parent:
    """Return a locked session as the parent of a fork at the seq `at` (None: its head). Raises InvalidRequest."""
    head = row.state.head
    if at is None or at == head:
        return Parent(row, AsOf(row.state, row.system_seq, row.tools_seq, row.user_seqs, row.pinned_seqs))
    if at > head:
        raise InvalidRequest(f"`at` is {at}, but the session's last event is {head}", field="at")
    return Parent(row, await as_of_head(tx, row.log, at) if at else AsOf(SessionState()))


_SESSION: Final = """
INSERT INTO sessions (session_id, tenant_id, external_id, policy_name, policy_version, model, estimator, metadata, head,
    turns, turn_id, awaits_user, tokens, open_calls, system_seq, tools_seq, user_seqs, pinned_seqs, decisions,
    redactions, parent, parent_at, lineage_ids, lineage_to, outside_tokens)
VALUES (:session_id, :tenant_id, :name, :policy_name, :policy_version, :model, :estimator, :metadata, :head,
    :turns, :turn_id, :awaits_user, :tokens, :open_calls, :system_seq, :tools_seq, :user_seqs, :pinned_seqs, :decisions,
    :redactions, :parent, :head, :lineage_ids, :lineage_to, :outside_tokens)
ON CONFLICT DO NOTHING RETURNING session_id
"""


async def create(tx: Connection, parent: Parent, external_id: str, metadata: Mapping[str, Json]) -> SessionRef | None:
    """Store a fork with the decisions and redactions of its shared events; return its ids, None if the name exists."""
    session, as_of = parent.session, parent.as_of
    ref = session_ref(session.tenant_id, external_id)
    state, at, from_id = as_of.state, parent.at, session.session_id
    calls = {call_id: {"seq": call.seq, "tool": call.tool} for call_id, call in state.open_calls.items()}
    decided = await tx.fetch(
        "SELECT seq, decision, action FROM visibility WHERE session_id = :session_id AND head <= :at "
        "ORDER BY decision, action",
        session_id=from_id,
        at=at,
    )
    erased = await tx.fetch(
        "SELECT seq FROM redactions WHERE session_id = :session_id AND seq <= :at", session_id=from_id, at=at
    )
    parts = await event_log.segments(tx, session.log, at)
    made = await tx.fetchrow(
        _SESSION,
        **ref._asdict(),
        name=external_id,
        policy_name=session.policy[0],
        policy_version=session.policy[1],
        model=session.model,
        estimator=session.estimator,
        metadata=canonical_json(metadata),
        head=at,
        turns=state.turns,
        turn_id=state.turn.turn_id,
        awaits_user=state.turn.awaits_user,
        tokens=state.tokens,
        open_calls=canonical_json(calls),
        system_seq=as_of.system_seq,
        tools_seq=as_of.tools_seq,
        user_seqs=list(as_of.user_seqs),
        pinned_seqs=_pinned(as_of.pinned_seqs, decided),
        decisions=max((one["decision"] for one in decided), default=0),
        redactions=len(erased),
        parent=session.external_id,
        lineage_ids=[segment.session_id for segment in parts],
        lineage_to=[segment.to_seq for segment in parts],
        outside_tokens=session.outside_tokens,
    )
    if made is not None:
        await _share_changes(tx, ref.session_id, from_id, at)
    return None if made is None else ref


async def _share_changes(tx: Connection, fork_id: UUID, from_id: UUID, at: int) -> None:
    """Copy the visibility decisions and redactions of a session's events up to `at` to its fork."""
    await tx.execute(
        "INSERT INTO visibility (session_id, tenant_id, seq, decision, action, head, replacement, path, created_at) "
        "SELECT :fork_id, tenant_id, seq, decision, action, head, replacement, path, created_at FROM visibility "
        "WHERE session_id = :session_id AND head <= :at RETURNING 1",
        fork_id=fork_id,
        session_id=from_id,
        at=at,
    )
    await tx.execute(
        "INSERT INTO redactions (session_id, tenant_id, seq, key_id, created_at) "
        "SELECT :fork_id, tenant_id, seq, key_id, created_at FROM redactions "
        "WHERE session_id = :session_id AND seq <= :at RETURNING 1",
        fork_id=fork_id,
        session_id=from_id,
        at=at,
    )


def _pinned(seqs: Sequence[int], decided: Sequence[asyncpg.Record]) -> list[int]:
    """Return the pinned seqs after these decisions, applied in order."""
    pinned = set(seqs)
    for one in decided:
        if one["action"] == "pin":
            pinned.add(one["seq"])
        elif one["action"] == "unpin":
            pinned.discard(one["seq"])
    return sorted(pinned)


async def copy_summaries(tx: Connection, parent: Parent, fork_id: UUID, covers: Mapping[UUID, UUID]) -> frozenset[UUID]:
    """Copy the parent's summaries of the shared log to a fork, with the summaries that they were merged from. `covers`
    maps the parent's covers to the fork's. Returns the ids of the summaries that the fork can read."""
    rows = await tx.fetch(
        "SELECT id, cover_id, from_seq, to_seq, status = 'live' AS live FROM summaries WHERE session_id = :session_id "
        "AND to_seq <= :at AND status IN ('live', 'superseded') AND (text <> '' OR origin IS NOT NULL) "
        "AND cover_id = ANY(:covers) ORDER BY created_at, id",
        session_id=parent.session.session_id,
        at=parent.at,
        covers=list(covers),
    )
    live: set[UUID] = set()
    for old in covers:
        candidates = [
            InheritableSummary(r["id"], r["from_seq"], r["to_seq"], r["live"]) for r in rows if r["cover_id"] == old
        ]
        live |= {one.id for one in cover_at(candidates, parent.at)}
    wanted = {row["id"] for row in rows}
    await tx.execute(
        f"INSERT INTO summaries (session_id, cover_id, text, digest, usage, status, origin, {SUMMARY_COLUMNS}) "
        "SELECT :fork_id, m.new, '', '{}', '{}', CASE WHEN id = ANY(:live) THEN 'live' ELSE 'superseded' END, "
        f"coalesce(origin, session_id), {SUMMARY_COLUMNS} FROM summaries "
        "JOIN unnest(:covers::uuid[], :new_covers::uuid[]) AS m(old, new) ON m.old = cover_id "
        "WHERE session_id = :session_id AND id = ANY(:wanted) RETURNING 1",
        fork_id=fork_id,
        session_id=parent.session.session_id,
        wanted=list(wanted),
        live=list(live),
        covers=list(covers),
        new_covers=list(covers.values()),
    )
    # The cover of views without a filter has the session's own id (`core/memory/cover.cover_id`).
    covered = max((r["to_seq"] for r in rows if r["id"] in live and covers[r["cover_id"]] == fork_id), default=0)
    await tx.execute(
        "UPDATE sessions SET covered_tokens = :tokens WHERE session_id = :session_id",
        session_id=fork_id,
        tokens=await event_log.tokens_through(tx, parent.session.log, covered),
    )
    return frozenset(wanted)


# The newest epoch planned before the log grew beyond the fork, unless the view is to be planned from scratch.
_VIEWS: Final = """
SELECT v.view, v.epoch, v.carry_tokens, e.epoch AS stands_at, e.head AS epoch_head, e.tokens_after, e.folded
FROM views v LEFT JOIN LATERAL (
    SELECT * FROM epochs WHERE session_id = :session_id AND view = v.view AND head <= :at
    ORDER BY epoch DESC LIMIT 1
) e ON v.afresh IS NULL
WHERE v.session_id = :session_id
"""
_VIEW: Final = """
INSERT INTO views (session_id, tenant_id, view, policy_name, policy_version, model, window_tokens, epoch, epochs,
    target, carry_tokens, afresh, learned, learned_version)
SELECT :fork_id, tenant_id, view, policy_name, policy_version, model, window_tokens, :epoch, :epoch,
    target, :carry, :afresh, learned, learned_version FROM views WHERE session_id = :session_id AND view = :view
RETURNING 1
"""


async def copy_views(tx: Connection, parent: Parent, fork_id: UUID, readable: frozenset[UUID]) -> None:
    """Copy the parent's views as of the fork, so that its first context begins with bytes in the provider's cache. A
    view whose epoch of that time names a summary that the fork cannot read is planned from scratch."""
    from_id = parent.session.session_id
    for view in await tx.fetch(_VIEWS, session_id=from_id, at=parent.at):
        epoch = view["stands_at"]
        if epoch is not None and not readable.issuperset(view["folded"]):
            epoch = None
        carry = 0
        if epoch is not None:
            await tx.execute(
                f"INSERT INTO epochs (session_id, {COPIED_OF_EPOCHS}) SELECT :fork_id, {COPIED_OF_EPOCHS} FROM epochs "
                "WHERE session_id = :session_id AND view = :view AND epoch = :epoch RETURNING 1",
                fork_id=fork_id,
                session_id=from_id,
                view=view["view"],
                epoch=epoch,
            )
            carry = view["carry_tokens"]
            if epoch != view["epoch"]:  # an estimate of the value that a call of that time would have recorded
                tokens = await event_log.tokens_through(tx, parent.session.log, view["epoch_head"])
                carry = view["tokens_after"] - tokens
        await tx.execute(
            _VIEW,
            fork_id=fork_id,
            session_id=from_id,
            view=view["view"],
            epoch=epoch or 1,
            carry=carry,
            afresh=None if epoch else "fork",
        )


@dataclass(frozen=True, slots=True)
class CutOff:
    """A tool call or result after a fork's last shared event that belongs to a round the fork shares."""

    seq: int
    type: str
    call_id: str
    tool: str | None


PARALLEL_MAX: Final = 256
_RESULTS: Final = (
    "SELECT seq, type, call_id, tool FROM events WHERE session_id = :session_id AND call_seq = ANY(:calls::bigint[]) "
    "AND seq BETWEEN :from_seq AND :to_seq"
)


async def cut_off_events(connection: Executor, log: SessionLog, at: int, open_calls: Collection[int]) -> list[CutOff]:
    """Return the events of a round that a fork at `at` cuts off: further calls, and results of its open calls. Further
    calls are looked for among the next PARALLEL_MAX events."""
    found: list[asyncpg.Record] = []
    following = await event_log.read(connection, log, "seq, type, call_id, tool", max(1, at), at + PARALLEL_MAX)
    if following and following[0]["seq"] == at and following[0]["type"] in ("assistant.message", "tool.call"):
        found += takewhile(lambda row: row["type"] == "tool.call", following[1:])
    parts = clip(await event_log.segments(connection, log), at + 1, SEQ_MAX) if open_calls else ()
    for segment in parts:
        found += await connection.fetch(_RESULTS, **parameters(segment), calls=list(open_calls))
    return [CutOff(*row.values()) for row in sorted(found, key=lambda row: int(row["seq"]))]


async def policies_of(connection: Executor, session_id: UUID) -> list[tuple[str, int]]:
    """Return the policies of a session and of its views, as names and versions."""
    rows = await connection.fetch(
        "SELECT policy_name, policy_version FROM sessions WHERE session_id = :session_id "
        "UNION SELECT policy_name, policy_version FROM views WHERE session_id = :session_id",
        session_id=session_id,
    )
    return [(row["policy_name"], row["policy_version"]) for row in rows]


# The few events stored under one session that determine the values of a session's row, found in one scan. Calls
# answered within the range are skipped.
_UNANSWERED: Final = """
    e.type = 'tool.call' AND NOT EXISTS (
        SELECT FROM events r WHERE r.session_id = :session_id AND r.call_seq = e.seq AND r.seq <= :to_seq)"""
_AS_OF: Final = f"""
SELECT e.seq, e.type, e.turn, e.call_id, e.tool, e.call_seq, {_UNANSWERED} AS unanswered, e.pinned, e.author,
       e.body ->> 'turn_id' AS turn_id
FROM events e WHERE e.session_id = :session_id AND e.seq BETWEEN :from_seq AND :to_seq AND (
    e.pinned OR e.type IN ('system.prompt', 'tools')
    OR (e.turn = :last_turn AND e.type IN ('user.message', 'turn.start', 'turn.end'))
    OR e.call_seq < :from_seq OR ({_UNANSWERED}))
ORDER BY e.seq
"""


async def as_of_head(connection: Executor, log: SessionLog, head: int) -> AsOf:
    """Return the values of a session's row as of `head`, as if the session had stored its whole log itself."""
    turn, tokens = await turn_and_tokens_at(connection, log, head)
    marks: list[SharedEvent] = []
    for segment in await segments(connection, log, head):
        rows = await connection.fetch(_AS_OF, **parameters(segment), last_turn=turn)
        marks += [SharedEvent(row["seq"], EventType(row["type"]), *list(row.values())[2:]) for row in rows]
    found = as_of(head, turn, tokens, marks)
    return replace(found, system_seqs=tuple(await prompts(connection, log, found.system_seq)))


_PAIRS: Final = """
SELECT call_seq AS seq FROM events WHERE session_id = :session_id AND seq = ANY(:seqs::bigint[])
AND seq BETWEEN :from_seq AND :to_seq AND call_seq IS NOT NULL
UNION SELECT seq FROM events WHERE session_id = :session_id AND call_seq = ANY(:seqs::bigint[])
AND seq BETWEEN :from_seq AND :to_seq"""


async def _pairs(connection: Executor, parts: Segments, seqs: Sequence[int]) -> set[int]:
    """Return the seqs of the results of these calls, and of the calls of these results."""
    found: set[int] = set()
    for segment in parts if seqs else ():
        rows = await connection.fetch(_PAIRS, **parameters(segment), seqs=list(seqs))
        found |= {row["seq"] for row in rows}
    return found


@dataclass(frozen=True, slots=True)
class AncestorPart:
    """The events of a fork's context that are stored under its ancestors, the turn of the context's last event, and the
    part of the log that was not read."""

    events: tuple[Event, ...]
    turn: int
    unread: Unread


async def ancestor_part(
    connection: Executor,
    row: Row,
    *,
    bound_tokens: int,
    kept: Sequence[int],
    anchors: Sequence[int],
    pinned: Sequence[int],
    bodiless: Sequence[int],
) -> AncestorPart:
    """Return the ancestors' part of a fork's context, which the statement that loads a context does not read.

    `row` is that statement's row. `kept` are older events that are always shown. `anchors`, and the calls and results
    that belong to `pinned`, are added only if part of the log stays unread. Events at `bodiless` come without their
    bodies.
    """
    own, head, log = row["events"], row["head"], log_of(row)
    parts = clip(log.shared or (), 1, head)
    to_seq, first, floor = shared_to(parts), row["first"], row["floor"]
    turn, tokens = (
        (row["turn"], event(own[-1]).cum_tokens) if head > to_seq else await turn_and_tokens_at(connection, log, head)
    )
    bounded = first > floor + 1
    if head <= to_seq or (bounded and first == to_seq + 1):  # the token bound may reach into ancestors' events
        start = await first_seq_over(connection, parts, tokens - bound_tokens) or to_seq + 1
        first = start if start > row["epoch_head"] + 1 else floor + 1
    seqs = {seq for seq in kept if seq < first}
    unread = NOTHING_UNREAD
    if first > floor + 1:
        seqs |= {seq for seq in (*anchors, *await _pairs(connection, parts, pinned)) if seq < first}
        turns, unread_tokens = row["unread_turn"] or 0, row["unread_tokens"] or 0
        if first - 1 <= to_seq:
            turns, unread_tokens = await turn_and_tokens_at(connection, log, first - 1)
        unread = Unread(to_seq=first - 1, tokens=unread_tokens, turns=turns)
    shared = {seq for seq in seqs if seq <= to_seq}
    return AncestorPart(await events(connection, log, first, to_seq, shared, bodiless=bodiless), turn, unread)
