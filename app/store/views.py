"""Views, epochs and the record of calls: one statement to read all that a context needs, one to write its outcome."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import asyncpg

from app.core.cover import Summary
from app.core.events import EventType, Json, canonical_json
from app.core.log import Event, occurred
from app.core.plan.context import NOTHING_UNREAD, Unread
from app.core.plan.frontier import START, Frontier, from_json, to_json, unquoted
from app.store import summaries
from app.store.engine import Connection, Database


@dataclass(frozen=True, slots=True)
class ViewRow:
    """A view's settings and current epoch; `epochs` is the highest epoch number given out.

    `afresh`: why the current epoch has not been written and is planned from nothing.
    """

    policy: tuple[str, int]
    model: str | None
    window_tokens: int
    epoch: int
    epochs: int
    afresh: str | None = None


@dataclass(frozen=True, slots=True)
class Loaded:
    """Everything one context needs. `head` and `turn` are as of the seq asked for.

    `used_at` is when the epoch's last call was made, in epoch seconds by its own clock. `cover` are the live summaries
    of every author filter, `folded` those that the frontier names. `compaction`: none, scheduled or running.
    """

    session_id: UUID
    session_model: str | None
    session_policy: tuple[str, int]
    estimator: str
    log_tokens: int
    head: int
    real_head: int
    turn: int
    view: ViewRow | None
    epoch: int
    epoch_head: int
    frontier: Frontier
    last_breakpoints: tuple[int, ...]
    used_at: float | None
    created_at: datetime
    events: tuple[Event, ...]
    unread: Unread
    cover: tuple[Summary, ...] = ()
    folded: tuple[Summary, ...] = ()
    compaction: str = "none"


_COMPACTION_NOW: Final = """
    CASE WHEN EXISTS (SELECT FROM compactions c WHERE c.session_id = $1 AND c.state = 'running') THEN 'running'
         WHEN EXISTS (SELECT FROM compactions c WHERE c.session_id = $1 AND c.state = 'scheduled')
              OR EXISTS (SELECT FROM pgqueuer q WHERE q.dedupe_key = 'compact:' || $1::uuid
                         AND q.status IN ('queued', 'picked')) THEN 'scheduled'
         ELSE 'none' END"""
_COMPACTION: Final = f"{_COMPACTION_NOW} AS compaction"

_SUMMARIES: Final = f"""
    ARRAY(SELECT ROW({summaries.COLUMNS}) FROM summaries WHERE session_id = $1 AND status = 'live' ORDER BY from_seq)
    AS cover"""

# Two index ranges and nothing searched for. The tail begins where the epoch left off (floor + 1), unless so much
# was appended since that a bounded read does not reach back to the epoch's head: then it begins where the last $6
# tokens do, found by one step into the index on cum_tokens. What must stay although it is older comes by its seqs.
_LOAD: Final = f"""
WITH h AS (
    SELECT s.*, least(s.head, coalesce($4::bigint, s.head)) AS at_head
    FROM sessions s WHERE s.session_id = $1 AND s.tenant_id = $2
), e AS (
    SELECT * FROM epochs WHERE NOT $5 AND session_id = $1 AND view = $3 AND epoch = coalesce($7::int, (
        SELECT epoch FROM views WHERE session_id = $1 AND view = $3))
), r AS (
    SELECT h.at_head, last.turn, coalesce(e.head, 0) AS epoch_head, coalesce(e.floor, 0) AS floor,
           coalesce((SELECT t.seq FROM events t WHERE t.session_id = $1 AND t.cum_tokens > last.cum_tokens - $6
                     ORDER BY t.cum_tokens LIMIT 1), 1) AS start
    FROM h LEFT JOIN events last ON last.session_id = $1 AND last.seq = h.at_head LEFT JOIN e ON true
), p AS (
    SELECT r.*, CASE WHEN start > epoch_head + 1 THEN start ELSE floor + 1 END AS first FROM r
), tail AS (
    SELECT ev.* FROM p, events ev WHERE ev.session_id = $1 AND ev.seq >= p.first AND ev.seq <= p.at_head
    UNION ALL
    SELECT ev.* FROM events ev WHERE ev.session_id = $1 AND ev.seq = ANY(ARRAY(
        SELECT i FROM p, e, unnest(e.kept) i WHERE i < p.first
        UNION SELECT i FROM p, h, unnest(coalesce($8::bigint[],
            h.user_seqs || h.pinned_seqs || h.system_seq || h.tools_seq
            || ARRAY(SELECT (c.value ->> 'seq')::bigint FROM jsonb_each(h.open_calls) c)
            || ARRAY(SELECT call_seq FROM events WHERE session_id = $1 AND seq = ANY(h.pinned_seqs))
            || ARRAY(SELECT seq FROM events WHERE session_id = $1 AND call_seq = ANY(h.pinned_seqs)))) i
            WHERE i < p.first AND p.first > p.floor + 1))
)
SELECT h.session_id, h.model, h.policy_name, h.policy_version, h.estimator, h.tokens AS all_tokens, h.head AS real_head,
       h.at_head AS head, coalesce(p.turn, 0) AS turn, p.first, p.floor, p.epoch_head, h.created_at,
       v.policy_name AS view_policy_name, v.policy_version AS view_policy_version, v.model AS view_model,
       v.window_tokens, coalesce(v.epoch, 0) AS view_epoch, coalesce(v.epochs, 0) AS epochs, v.afresh,
       coalesce(e.epoch, 0) AS epoch, e.frontier,
       last_call.breakpoints, last_call.used_at,
       unread.turn AS unread_turn, unread.cum_tokens AS unread_tokens, {_SUMMARIES}, {_COMPACTION},
       ARRAY(SELECT ROW({summaries.COLUMNS}) FROM summaries WHERE session_id = $1 AND id = ANY(e.folded)
             ORDER BY from_seq) AS folded,
       ARRAY(SELECT ROW(t.seq, t.type, t.turn, t.tokens, t.cum_tokens, t.call_id, t.tool, t.call_seq, t.author,
                        t.pinned, t.is_error, t.gist, extract(epoch FROM t.created_at)::float8,
                        CASE WHEN t.seq = ANY(e.stubbed) THEN NULL ELSE t.body END)
             FROM tail t ORDER BY t.seq) AS events
FROM h CROSS JOIN p LEFT JOIN views v ON v.session_id = $1 AND v.view = $3 LEFT JOIN e ON true
LEFT JOIN LATERAL (
    SELECT breakpoints, extract(epoch FROM coalesce((manifest ->> 'now')::timestamptz, created_at))::float8 AS used_at
    FROM model_calls m WHERE m.session_id = $1 AND m.view = $3 AND m.epoch = e.epoch AND m.head <= h.at_head
    ORDER BY m.call_id DESC LIMIT 1
) last_call ON true
LEFT JOIN events unread ON unread.session_id = $1 AND unread.seq = p.first - 1 AND p.first > p.floor + 1
"""

# The hot path: what has been added since an earlier read ($4: its head) in the same epoch ($5) of the same session
# ($6: created at). No row when that read no longer stands, or when more was appended than one read should bring.
_NEWS: Final = f"""
SELECT s.tokens AS all_tokens, s.head, v.policy_name AS view_policy_name, v.policy_version AS view_policy_version,
       v.model AS view_model, v.window_tokens, v.epoch AS view_epoch, v.epochs, v.afresh, s.model, s.policy_name,
       s.policy_version, last_call.breakpoints, last_call.used_at, {_SUMMARIES}, {_COMPACTION},
       ARRAY(SELECT ROW(seq, type, turn, tokens, cum_tokens, call_id, tool, call_seq, author, pinned, is_error, gist,
                        extract(epoch FROM created_at)::float8, body)
             FROM events WHERE session_id = $1 AND seq > $4 ORDER BY seq) AS events
FROM sessions s JOIN views v ON v.session_id = s.session_id AND v.view = $3
LEFT JOIN LATERAL (
    SELECT breakpoints, extract(epoch FROM coalesce((manifest ->> 'now')::timestamptz, created_at))::float8 AS used_at
    FROM model_calls m WHERE m.session_id = $1 AND m.view = $3 AND m.epoch = $5 ORDER BY m.call_id DESC LIMIT 1
) last_call ON true
WHERE s.session_id = $1 AND s.tenant_id = $2 AND s.created_at = $6 AND v.epoch = $5 AND s.head <= $4 + $7
"""
NEWS_EVENTS_MAX: Final = 2_000

# For a context as of an earlier seq, what the session's row says of the present is looked up as of then.
_AS_OF: Final = """
SELECT (SELECT max(epoch) FROM epochs WHERE session_id = $1 AND view = $2 AND head <= $3) AS epoch,
       ARRAY(SELECT max(seq) FROM events WHERE session_id = $1 AND seq <= $3 AND type = 'system.prompt'
             UNION SELECT max(seq) FROM events WHERE session_id = $1 AND seq <= $3 AND type = 'tools'
             UNION SELECT u.seq FROM events u WHERE u.session_id = $1 AND u.seq <= $3 AND u.type = 'user.message'
                 AND u.turn = (SELECT turn FROM events WHERE session_id = $1 AND seq = $3)
             UNION SELECT seq FROM events WHERE session_id = $1 AND seq <= $3 AND pinned
             UNION SELECT c.seq FROM events c WHERE c.session_id = $1 AND c.seq <= $3 AND c.type = 'tool.call'
                 AND NOT EXISTS (SELECT FROM events x WHERE x.session_id = $1 AND x.call_seq = c.seq AND x.seq <= $3)
       ) AS anchors
"""


async def load(
    database: Database,
    session_id: UUID,
    tenant_id: UUID,
    view: str,
    *,
    at: int | None,
    fresh: bool,
    bound_tokens: int,
) -> Loaded | None:
    """What a context of this view needs; None if there is no such session.

    `fresh` disregards the view's epoch. `bound_tokens` (by the session's estimator) bounds what is read beyond it.
    """
    epoch, anchors = None, None
    if at is not None:
        as_of = await database.fetchrow(_AS_OF, session_id, view, at)
        epoch, anchors = (as_of["epoch"] or 0, [seq for seq in as_of["anchors"] if seq]) if as_of else (0, [])
    row = await database.fetchrow(_LOAD, session_id, tenant_id, view, at, fresh, bound_tokens, epoch, anchors)
    if row is None:
        return None
    events = tuple(event(record) for record in row["events"])
    unread_to = row["first"] - 1 if row["first"] > row["floor"] + 1 else 0
    return Loaded(
        session_id=row["session_id"],
        session_model=row["model"],
        session_policy=(row["policy_name"], row["policy_version"]),
        estimator=row["estimator"],
        log_tokens=row["all_tokens"],
        head=row["head"],
        real_head=row["real_head"],
        turn=row["turn"],
        view=_view(row),
        epoch=row["epoch"],
        epoch_head=row["epoch_head"],
        frontier=from_json(json.loads(row["frontier"])) if row["frontier"] else START,
        last_breakpoints=tuple(row["breakpoints"] or ()),
        used_at=row["used_at"],
        created_at=row["created_at"],
        events=events,
        unread=Unread(unread_to, row["unread_tokens"] or 0, row["unread_turn"] or 0) if unread_to else NOTHING_UNREAD,
        cover=tuple(map(summaries.summary, row["cover"])),
        folded=tuple(map(summaries.summary, row["folded"])),
        compaction=row["compaction"],
    )


async def news(database: Database, tenant_id: UUID, view: str, held: Loaded) -> Loaded | None:
    """What was read before, brought up to date; None when it must be read anew."""
    row = await database.fetchrow(
        _NEWS, held.session_id, tenant_id, view, held.head, held.epoch, held.created_at, NEWS_EVENTS_MAX
    )
    if row is None:
        return None
    added = tuple(event(record) for record in row["events"])
    return replace(
        held,
        session_model=row["model"],
        session_policy=(row["policy_name"], row["policy_version"]),
        log_tokens=row["all_tokens"],
        head=row["head"],
        real_head=row["head"],
        turn=added[-1].turn if added else held.turn,
        view=_view(row),
        last_breakpoints=tuple(row["breakpoints"] or ()),
        used_at=row["used_at"],
        events=held.events + added,
        cover=tuple(map(summaries.summary, row["cover"])),
        compaction=row["compaction"],
    )


def _view(row: asyncpg.Record) -> ViewRow | None:
    if row["window_tokens"] is None:
        return None
    policy = (row["view_policy_name"], row["view_policy_version"])
    return ViewRow(policy, row["view_model"], row["window_tokens"], row["view_epoch"], row["epochs"], row["afresh"])


EVENT_COLUMNS: Final = (
    "seq, type, turn, tokens, cum_tokens, call_id, tool, call_seq, author, pinned, is_error, gist,"
    " extract(epoch FROM created_at)::float8, body"
)


def event(record: Sequence[Any]) -> Event:
    """A row of EVENT_COLUMNS."""
    seq, kind, turn, tokens, cum, call_id, tool, call_seq, author, pinned, is_error, gist, stored_at, text = record
    body = None if text is None else json.loads(text)
    at = occurred(body, stored_at)
    return Event(
        seq, EventType(kind), turn, tokens, cum, call_id, tool, call_seq, author, pinned, is_error, gist, at, body
    )


@dataclass(frozen=True, slots=True)
class NewEpoch:
    """An epoch to be opened: it becomes the view's current one if `current`."""

    epoch: int
    head: int
    cause: str
    frontier: Frontier
    tokens_before: int
    tokens_after: int
    settings: ViewRow
    target: int
    carry_tokens: int
    current: bool
    evictions: Sequence[Mapping[str, Json]]
    evicted: Sequence[tuple[int, int]]
    changed_seq: int
    stable_tokens: int


@dataclass(frozen=True, slots=True)
class CallRow:
    """The record of one call."""

    call_id: UUID
    view: str
    head: int
    epoch: int
    policy: tuple[str, int]
    format: str
    model: str | None
    render_version: int
    manifest: Mapping[str, Json]
    breakpoints: tuple[int, ...]
    estimate: int
    target: int
    sha256: bytes
    counted: int
    evicted_tokens: int
    keep_days: int | None = None
    retry_of: UUID | None = None


_CALL_COLUMNS: Final = """
    session_id, tenant_id, call_id, view, head, epoch, policy_name, policy_version, format, model, render_version,
    manifest, breakpoints, estimate, target, sha256, counted, evicted_tokens, evicted_class, expires_at, retry_of"""
# The values behind the first six, from the seventh argument on.
_CALL_VALUES: Final = """
    $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, now() + make_interval(days => $20), $21"""


_RECORD_CALL: Final = f"""
INSERT INTO model_calls ({_CALL_COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6, {_CALL_VALUES})
"""

# The same for a context made of what an earlier read ($22: the session's creation, $23: its model, $24: the breakpoints
# of the view's last call) left behind: only if that is still how the view stands.
_RECORD_CALL_IF_SO: Final = f"""
INSERT INTO model_calls ({_CALL_COLUMNS})
SELECT $1, $2, $3, $4, $5, $6, {_CALL_VALUES}
FROM sessions s JOIN views v ON v.session_id = s.session_id AND v.view = $4
WHERE s.session_id = $1 AND s.tenant_id = $2 AND s.head = $5 AND v.epoch = $6 AND s.created_at = $22
  AND s.model IS NOT DISTINCT FROM $23
  AND ($24::bigint[] IS NULL OR $24 = coalesce((SELECT breakpoints FROM model_calls m WHERE m.session_id = $1
        AND m.view = $4 AND m.epoch = $6 ORDER BY m.call_id DESC LIMIT 1), '{{}}'))
RETURNING CASE WHEN $25::boolean THEN ({_COMPACTION_NOW}) ELSE 'none' END AS compaction
"""

# An epoch is opened only on top of the one its plan started from; else nothing is written and the plan is made again.
# $22 on: the view's policy, model and window, its target and carried tokens, the epoch's cause, frontier and tokens
# before and after, whether it is the current one, and what of its frontier a read needs.
_RECORD_EPOCH: Final = f"""
WITH moved AS (
    INSERT INTO views (session_id, tenant_id, view, policy_name, policy_version, model, window_tokens, epoch, epochs,
                       target, carry_tokens)
    VALUES ($1, $2, $4, $22, $23, $24, $25, CASE WHEN $32 THEN $6 ELSE 0 END, $6, $26, $27)
    ON CONFLICT (session_id, view) DO UPDATE SET epochs = excluded.epochs,
        policy_name = CASE WHEN $32 THEN excluded.policy_name ELSE views.policy_name END,
        policy_version = CASE WHEN $32 THEN excluded.policy_version ELSE views.policy_version END,
        model = CASE WHEN $32 THEN excluded.model ELSE views.model END,
        window_tokens = CASE WHEN $32 THEN excluded.window_tokens ELSE views.window_tokens END,
        target = CASE WHEN $32 THEN excluded.target ELSE views.target END,
        carry_tokens = CASE WHEN $32 THEN excluded.carry_tokens ELSE views.carry_tokens END,
        epoch = CASE WHEN $32 THEN excluded.epoch ELSE views.epoch END,
        afresh = CASE WHEN $32 THEN NULL ELSE views.afresh END
    WHERE views.epochs = $6 - 1
    RETURNING view
), opened AS (
    INSERT INTO epochs (session_id, tenant_id, view, epoch, head, cause, frontier, tokens_before, tokens_after, floor,
                        kept, stubbed, folded, evictions, evicted, changed_seq, stable_tokens)
    SELECT $1, $2, $4, $6, $5, $28, $29, $30, $31, $33, $34, $35, $36::uuid[], $37, $38, $39, $40 FROM moved
), called AS (
    INSERT INTO model_calls ({_CALL_COLUMNS}) SELECT $1, $2, $3, $4, $5, $6, {_CALL_VALUES} FROM moved
)
SELECT view FROM moved
"""


async def record(database: Database, session_id: UUID, tenant_id: UUID, call: CallRow, epoch: NewEpoch | None) -> bool:
    """Store the call, and the epoch it opened. False, and nothing stored, when another was opened meanwhile."""
    if epoch is None:
        await database.execute(
            _RECORD_CALL, session_id, tenant_id, call.call_id, call.view, call.head, call.epoch, *_values(call)
        )
        return True
    settings = epoch.settings
    row = await database.fetchrow(
        _RECORD_EPOCH,
        session_id,
        tenant_id,
        call.call_id,
        call.view,
        call.head,
        epoch.epoch,
        *_values(call),
        *settings.policy,
        settings.model,
        settings.window_tokens,
        epoch.target,
        epoch.carry_tokens,
        epoch.cause,
        canonical_json(to_json(epoch.frontier)),
        epoch.tokens_before,
        epoch.tokens_after,
        epoch.current,
        epoch.frontier.floor,
        list(epoch.frontier.kept),
        [stub.seq for stub in epoch.frontier.stubs if not stub.chars],
        [fold.id for fold in epoch.frontier.folds],
        canonical_json(epoch.evictions),
        [asyncpg.Range(first, last + 1) for first, last in epoch.evicted],
        epoch.changed_seq,
        epoch.stable_tokens,
    )
    return row is not None


async def record_if_so(database: Database, tenant_id: UUID, call: CallRow, held: Loaded) -> str | None:
    """Store the call if the view still stands as it is held: whether summaries are being written (`Loaded.compaction`).

    That is looked up only if they were when it was last looked at, or have been asked for since by an append here.
    None, and nothing stored, when the view does not stand so.
    """
    last = list(held.last_breakpoints) if call.format == "anthropic" else None
    row = await database.fetchrow(
        _RECORD_CALL_IF_SO,
        held.session_id,
        tenant_id,
        call.call_id,
        call.view,
        call.head,
        call.epoch,
        *_values(call),
        held.created_at,
        held.session_model,
        last,
        held.compaction != "none",
    )
    return None if row is None else str(row["compaction"])


def _values(call: CallRow) -> tuple[object, ...]:
    return (
        *call.policy,
        call.format,
        call.model,
        call.render_version,
        canonical_json(call.manifest),
        list(call.breakpoints),
        call.estimate,
        call.target,
        call.sha256,
        call.counted,
        call.evicted_tokens,
        call.evicted_tokens.bit_length(),
        call.keep_days,
        call.retry_of,
    )


async def epochs(database: Database, session_id: UUID, view: str, after: int, limit: int) -> list[Mapping[str, Any]]:
    """The epochs of a view after number `after`, in order."""
    rows = await database.fetch(
        "SELECT epoch, head, cause, tokens_before, tokens_after, created_at FROM epochs "
        "WHERE session_id = $1 AND view = $2 AND epoch > $3 ORDER BY epoch LIMIT $4",
        session_id,
        view,
        after,
        limit,
    )
    return [dict(row) for row in rows]


@dataclass(frozen=True, slots=True)
class Stand:
    """A view's policy, and its current epoch with its frontier."""

    policy: tuple[str, int]
    epoch: int
    frontier: Frontier


async def standing(database: Database, session_id: UUID, view: str) -> Stand | None:
    """None for a view that was never read."""
    row = await database.fetchrow(
        "SELECT v.policy_name, v.policy_version, v.epoch, e.frontier FROM views v "
        "LEFT JOIN epochs e ON e.session_id = v.session_id AND e.view = v.view AND e.epoch = v.epoch "
        "WHERE v.session_id = $1 AND v.view = $2",
        session_id,
        view,
    )
    if row is None:
        return None
    frontier = from_json(json.loads(row["frontier"])) if row["frontier"] else START
    return Stand((row["policy_name"], row["policy_version"]), row["epoch"], frontier)


async def outline(database: Database, session_id: UUID, head: int) -> tuple[Event, ...]:
    """All events up to `head`, without what they say."""
    rows = await database.fetch(
        "SELECT seq, type, turn, tokens, cum_tokens, call_id, tool, call_seq, author, pinned, is_error, gist, "
        "extract(epoch FROM created_at)::float8, NULL AS body FROM events WHERE session_id = $1 AND seq <= $2 "
        "ORDER BY seq",
        session_id,
        head,
    )
    return tuple(event(tuple(row.values())) for row in rows)


async def redacted(database: Database, session_id: UUID) -> list[int]:
    """The seqs whose content was destroyed."""
    rows = await database.fetch("SELECT seq FROM redactions WHERE session_id = $1 ORDER BY seq", session_id)
    return [row["seq"] for row in rows]


async def plan_afresh(tx: Connection, session_id: UUID) -> None:
    """Let every view of a session be planned from nothing: it stands at an epoch that has not been written."""
    await tx.execute(
        "UPDATE views SET carry_tokens = 0, epoch = epochs + 1, epochs = epochs + 1, afresh = 'redaction' "
        "WHERE session_id = $1",
        session_id,
    )


async def unquote(tx: Connection, session_id: UUID, seq: int) -> None:
    """Take what epochs quote of an event out of them. The transaction must be a redaction of this session."""
    rows = await tx.fetch(
        "SELECT view, epoch, frontier FROM epochs WHERE session_id = $1 "
        "AND frontier::jsonb @> jsonb_build_object('stubs', jsonb_build_array(jsonb_build_object('seq', $2::bigint)))",
        session_id,
        seq,
    )
    for row in rows:
        await tx.execute(
            "UPDATE epochs SET frontier = $4::json WHERE session_id = $1 AND view = $2 AND epoch = $3",
            session_id,
            row["view"],
            row["epoch"],
            canonical_json(to_json(unquoted(from_json(json.loads(row["frontier"])), seq))),
        )
