"""Views and their epochs: one statement to read all that a context needs."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

import asyncpg

from app.core.log.event import Event
from app.core.plan.context.context import NOTHING_UNREAD, Unread
from app.core.plan.context.frontier import START, Frontier, from_json
from app.core.plan.reducers.visibility import NewestDecision
from app.core.tokens.calibration import Reported
from app.core.view.loaded import LoadedView, ViewRow
from app.store import ancestors, calibrations, event_log, layers, summaries, texts, visibility
from app.store.engine import Database
from app.store.event_log import SessionLog
from app.store.events import decoded, event
from app.store.sessions import session_key

COMPACTION_NOW: Final = """
    CASE WHEN EXISTS (SELECT FROM compactions c WHERE c.session_id = :session_id AND c.state = 'running') THEN 'running'
         WHEN EXISTS (SELECT FROM compactions c WHERE c.session_id = :session_id AND c.state = 'scheduled')
              OR EXISTS (SELECT FROM pgqueuer q WHERE q.dedupe_key = 'compact:' || :session_id::uuid
                         AND q.status IN ('queued', 'picked')) THEN 'scheduled'
         ELSE 'none' END"""
_COMPACTION: Final = f"{COMPACTION_NOW} AS compaction"

_SUMMARIES: Final = f"""
    ARRAY(SELECT ROW({summaries.COLUMNS}) FROM summaries
          WHERE session_id = :session_id AND status = 'live' ORDER BY from_seq) AS cover"""

_CALIBRATIONS: Final = f"""
    ARRAY(SELECT ROW({calibrations.COLUMNS}) FROM calibrations c WHERE c.tenant_id = :tenant_id AND c.model = $model)
    AS calibrations, v.reported_call, v.reported_epoch, v.reported_head, v.reported_tokens, v.reported_counted,
    v.reported_outside, v.learned, coalesce(v.learned_version, 0) AS learned_version"""


def _model(session: str) -> str:
    """Return the SQL of the model to plan for: the requested one, else the view's, else the session's."""
    views = f"CASE WHEN v.model IS NULL THEN {session}.model ELSE v.model END"
    return f"CASE WHEN :model::text IS NULL THEN {views} ELSE :model END"


EVENTS_AT_ONCE: Final = 2_000

# Seqs of the events that every context needs, however old. `h` is the session's row.
_ANCHORS: Final = f"""
    h.user_seqs || h.pinned_seqs || h.tools_seq || ARRAY({event_log.PROMPTS.replace("$newest", "h.system_seq")})
    || ARRAY(SELECT (c.value ->> 'seq')::bigint FROM jsonb_each(h.open_calls) c)
    || ARRAY(SELECT call_seq FROM events WHERE session_id = :session_id AND seq = ANY(h.pinned_seqs))
    || ARRAY(SELECT seq FROM events WHERE session_id = :session_id AND call_seq = ANY(h.pinned_seqs))"""

# Two index ranges, and no search. The tail begins after the epoch's floor, unless so much was appended since that a
# bounded read does not reach back to the epoch's head: then it begins with the last `bound_tokens`, found by one step
# into the index on cum_tokens. Older events that must stay are read by their seqs. A condition that enters an index has
# no COALESCE and no arithmetic on columns: below row-level security the index would not be used (docs/decisions/0020).
#
# Rows in one array are decoded in one go, which delays every other request. So of a long tail only the newest events
# are in it, and the rest is read page by page. It changes only by redaction, which the recording of a call detects.
_LOAD: Final = f"""
WITH h AS (
    SELECT s.*, least(s.head, coalesce(:at::bigint, s.head)) AS at_head
    FROM sessions s WHERE s.session_id = :session_id AND s.tenant_id = :tenant_id
), e AS (
    SELECT * FROM epochs WHERE NOT :fresh AND session_id = :session_id AND view = :view
        AND epoch = CASE WHEN :epoch::int IS NULL
                    THEN (SELECT epoch FROM views WHERE session_id = :session_id AND view = :view) ELSE :epoch END
), r AS (
    SELECT h.at_head, last.turn, coalesce(e.head, 0) AS epoch_head, coalesce(e.floor, 0) AS floor,
           coalesce((SELECT t.seq FROM events t
                     WHERE t.session_id = :session_id AND t.cum_tokens > last.cum_tokens - :bound_tokens
                     ORDER BY t.cum_tokens, t.seq LIMIT 1), 1) AS start
    FROM h LEFT JOIN events last ON last.session_id = :session_id AND last.seq = h.at_head LEFT JOIN e ON true
), p AS (
    SELECT r.*, first, first - 1 AS before, greatest(first - 1, at_head - {EVENTS_AT_ONCE}) AS apart_to
    FROM r CROSS JOIN LATERAL (SELECT CASE WHEN start > epoch_head + 1 THEN start ELSE floor + 1 END AS first) f
), tail AS (
    SELECT ev.* FROM p, events ev WHERE ev.session_id = :session_id AND ev.seq > p.apart_to AND ev.seq <= p.at_head
    UNION ALL
    SELECT ev.* FROM events ev WHERE ev.session_id = :session_id AND ev.seq = ANY(ARRAY(
        SELECT i FROM p, e, unnest(e.kept) i WHERE i < p.first
        UNION SELECT i FROM p, h, unnest(coalesce(:anchors::bigint[], {_ANCHORS})) i
            WHERE i < p.first AND p.first > p.floor + 1))
), decided AS (
    SELECT newest.* FROM ({visibility.CURRENT_UNTIL}) AS newest CROSS JOIN h CROSS JOIN p LEFT JOIN e ON true
    WHERE newest.seq > coalesce(h.lineage_to[cardinality(h.lineage_to)], 0)
      AND (newest.seq >= p.first OR newest.seq = ANY(e.kept)
           OR newest.seq = ANY(coalesce(:anchors::bigint[], {_ANCHORS})))
)
SELECT h.session_id, h.tenant_id, h.version, h.line, h.model, h.policy_name, h.policy_version, h.estimator,
       h.tokens AS all_tokens, h.outside_tokens, h.head AS real_head,
       h.redactions, h.parent, h.lineage_ids, h.lineage_to, h.system_seq,
       CASE WHEN h.lineage_ids <> '{{}}' THEN coalesce(:anchors::bigint[], {_ANCHORS}) END AS anchors,
       h.decisions, coalesce(:pinned::bigint[], h.pinned_seqs) AS pinned,
       ARRAY(SELECT ROW({visibility.COLUMNS}) FROM decided ORDER BY seq) AS decided,
       h.at_head AS head, coalesce(p.turn, 0) AS turn, p.first, p.apart_to, p.floor, p.epoch_head, h.created_at,
       v.policy_name AS view_policy_name, v.policy_version AS view_policy_version, v.model AS view_model,
       v.window_tokens, coalesce(v.epoch, 0) AS view_epoch, coalesce(v.epochs, 0) AS epochs, v.afresh,
       coalesce(e.epoch, 0) AS epoch, e.frontier,
       last_call.breakpoints, last_call.used_at,
       unread.turn AS unread_turn, unread.cum_tokens AS unread_tokens, {_SUMMARIES}, {_COMPACTION},
       {layers.CURRENT.replace("$row", "h")},
       {_CALIBRATIONS.replace("$model", _model("h"))},
       ARRAY(SELECT ROW({summaries.COLUMNS}) FROM summaries WHERE session_id = :session_id AND id = ANY(e.folded)
             ORDER BY from_seq) AS folded,
       ARRAY(SELECT ROW(t.seq, t.type, t.turn, t.tokens, t.cum_tokens, t.call_id, t.tool, t.call_seq, t.author,
                        t.seq = ANY(coalesce(:pinned::bigint[], h.pinned_seqs)), t.is_error, t.gist,
                        extract(epoch FROM t.created_at)::float8,
                        CASE WHEN t.seq = ANY(e.stubbed) AND t.seq <> ALL(coalesce(:pinned::bigint[], h.pinned_seqs))
                             AND t.seq <> ALL(ARRAY(SELECT seq FROM decided WHERE action = 'show'))
                             THEN NULL ELSE t.body END)
             FROM tail t ORDER BY t.seq) AS events
FROM h CROSS JOIN p LEFT JOIN views v ON v.session_id = :session_id AND v.view = :view LEFT JOIN e ON true
LEFT JOIN LATERAL (
    SELECT breakpoints, extract(epoch FROM coalesce(clock, created_at))::float8 AS used_at
    FROM model_calls m WHERE m.session_id = :session_id AND m.view = :view AND m.epoch = e.epoch AND m.head <= h.at_head
    ORDER BY m.call_id DESC LIMIT 1
) last_call ON true
LEFT JOIN events unread ON unread.session_id = :session_id AND unread.seq = p.before AND p.first > p.floor + 1
"""

# The hot path: what was added since an earlier read (`head`) in the same epoch of the same session. No row when that
# read is stale, or when more was appended than one read should bring (`most`).
_NEWS: Final = f"""
SELECT s.tokens AS all_tokens, s.head, s.version, s.line, v.policy_name AS view_policy_name,
       v.policy_version AS view_policy_version, v.model AS view_model, v.window_tokens, v.epoch AS view_epoch,
       v.epochs, v.afresh, s.model, s.policy_name, s.policy_version, s.outside_tokens, last_call.breakpoints,
       last_call.used_at, {_SUMMARIES}, {_COMPACTION},
       {layers.CURRENT.replace("$row", "s")},
       {_CALIBRATIONS.replace("$model", _model("s"))},
       ARRAY(SELECT ROW(seq, type, turn, tokens, cum_tokens, call_id, tool, call_seq, author, pinned, is_error, gist,
                        extract(epoch FROM created_at)::float8, body)
             FROM events WHERE session_id = :session_id AND seq > :head ORDER BY seq) AS events
FROM sessions s JOIN views v ON v.session_id = s.session_id AND v.view = :view
LEFT JOIN LATERAL (
    SELECT breakpoints, extract(epoch FROM coalesce(clock, created_at))::float8 AS used_at
    FROM model_calls m WHERE m.session_id = :session_id AND m.view = :view AND m.epoch = :epoch
    ORDER BY m.call_id DESC LIMIT 1
) last_call ON true
WHERE s.session_id = :session_id AND s.tenant_id = :tenant_id AND s.created_at = :created_at AND v.epoch = :epoch
  AND s.head <= :head + :most
  AND s.decisions = :decisions
"""
NEWS_EVENTS_MAX: Final = 2_000
HOT: Final = {"a view, whole": _LOAD, "a view, what is new": _NEWS}

_LAST_CALL: Final = """
SELECT breakpoints, extract(epoch FROM coalesce(clock, created_at))::float8 AS used_at
FROM model_calls WHERE session_id = :session_id AND view = :view AND epoch = :epoch AND head <= :head
ORDER BY call_id DESC LIMIT 1
"""

_NEWEST_PROMPT: Final = (
    "(SELECT max(n.seq) FROM events n WHERE n.session_id = :session_id AND n.seq <= :at AND n.type = 'system.prompt')"
)

# For a context as of an earlier seq: the values of the session's row, looked up as of that seq.
_AS_OF: Final = f"""
SELECT (SELECT max(epoch) FROM epochs WHERE session_id = :session_id AND view = :view AND head <= :at) AS epoch,
       ARRAY({event_log.PROMPTS.replace("$newest", _NEWEST_PROMPT)}
             UNION SELECT max(seq) FROM events WHERE session_id = :session_id AND seq <= :at AND type = 'tools'
             UNION SELECT u.seq FROM events u WHERE u.session_id = :session_id AND u.seq <= :at
                 AND u.type = 'user.message'
                 AND u.turn = (SELECT turn FROM events WHERE session_id = :session_id AND seq = :at)
             UNION SELECT c.seq FROM events c WHERE c.session_id = :session_id AND c.seq <= :at AND c.type = 'tool.call'
                 AND NOT EXISTS (SELECT FROM events x
                                 WHERE x.session_id = :session_id AND x.call_seq = c.seq AND x.seq <= :at)
       ) AS anchors,
       ARRAY((SELECT seq FROM events WHERE session_id = :session_id AND seq <= :at AND pinned
              UNION SELECT unnest(:pinned::bigint[])
              UNION SELECT seq FROM visibility WHERE session_id = :session_id AND head <= :at AND action = 'pin')
             EXCEPT SELECT seq FROM (
                 SELECT DISTINCT ON (seq) seq, action FROM visibility
                 WHERE session_id = :session_id AND head <= :at AND action IN ('pin', 'unpin')
                 ORDER BY seq, decision DESC, action) AS newest WHERE action = 'unpin') AS pinned
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
    model: str | None = None,
) -> LoadedView | None:
    """Load what a context of a view needs, for its own model or for `model`; None if there is no such session.

    `fresh` disregards the view's epoch. `bound_tokens`, by the session's estimator, bounds what is read after it.
    """
    epoch, anchors, pinned = (None, None, None) if at is None else await _as_of(database, session_id, view, at)
    row = await database.fetchrow(
        _LOAD,
        session_id=session_id,
        tenant_id=tenant_id,
        view=view,
        at=at,
        fresh=fresh,
        bound_tokens=bound_tokens,
        epoch=epoch,
        anchors=anchors,
        model=model,
        pinned=pinned,
    )
    if row is None:
        return None
    decided = tuple(map(visibility.decided, row["decided"]))
    frontier = from_json(texts.loads(row["frontier"])) if row["frontier"] else START
    events = await decoded(row["events"])
    kept = tuple(one for one in events if one.seq < row["first"])
    apart = await _apart(database, row, frontier, decided)
    unread_to = row["first"] - 1 if row["first"] > row["floor"] + 1 else 0
    summed = await summaries.with_texts(database, (*row["cover"], *row["folded"]))
    loaded = LoadedView(
        **_now(row),
        session_id=row["session_id"],
        estimator=row["estimator"],
        head=row["head"],
        real_head=row["real_head"],
        turn=row["turn"],
        epoch=row["epoch"],
        epoch_head=row["epoch_head"],
        frontier=frontier,
        created_at=row["created_at"],
        events=(*kept, *apart, *events[len(kept) :]),
        unread=Unread(unread_to, row["unread_tokens"] or 0, row["unread_turn"] or 0) if unread_to else NOTHING_UNREAD,
        cover=summed[: len(row["cover"])],
        folded=summed[len(row["cover"]) :],
        redactions=row["redactions"],
        pinned=tuple(row["pinned"]),
        decided=decided,
        decisions=row["decisions"] if at is None else max((one.number for one in decided), default=0),
        layers=layers.listed(row["layers"]) if row["head"] == row["real_head"] else (),
    )
    return await _with_shared(database, view, row, loaded, at, bound_tokens) if row["lineage_ids"] else loaded


async def _as_of(database: Database, session_id: UUID, view: str, at: int) -> tuple[int, Sequence[int], Sequence[int]]:
    """Return the epoch, the anchors and the pinned seqs of a view when its session's head was `at`."""
    known = await event_log.known(database, SessionLog(session_id))
    log = await ancestors.as_of_head(database, known, at) if known.shared else None
    row = await database.fetchrow(
        _AS_OF, session_id=session_id, view=view, at=at, pinned=log.pinned_seqs if log else ()
    )
    epoch, pinned = (row["epoch"] or 0, row["pinned"]) if row else (0, [])
    found = log.anchors if log else row["anchors"] if row else ()
    return epoch, [*(seq for seq in found if seq), *pinned], pinned


async def _apart(
    database: Database, row: asyncpg.Record, state: Frontier, decided: Sequence[NewestDecision]
) -> tuple[Event, ...]:
    """Return the older part of a long tail of a session's own events."""
    own = SessionLog(row["session_id"], shared=())
    pinned = frozenset(row["pinned"])
    shown = pinned.union(one.seq for one in decided if not one.hidden)
    bodiless = [stub.seq for stub in state.stubs if not stub.chars and stub.seq not in shown]
    found: list[Event] = []
    for first in range(row["first"], row["apart_to"] + 1, EVENTS_AT_ONCE):
        last = min(first + EVENTS_AT_ONCE - 1, row["apart_to"])
        events = await event_log.events(database, own, first, last, bodiless=bodiless)
        found += [replace(one, pinned=one.seq in pinned) for one in events]
    return tuple(found)


async def _with_shared(
    database: Database, view: str, row: asyncpg.Record, loaded: LoadedView, at: int | None, bound_tokens: int
) -> LoadedView:
    """Return what was loaded of a fork with the events, decisions and last call that it shares with its ancestors."""
    state, session_id = loaded.frontier, loaded.session_id
    shared_to = min(row["lineage_to"][-1], loaded.head)
    decided: tuple[NewestDecision, ...] = ()
    if row["decisions"]:
        decided = await visibility.until(database, session_id, loaded.head, shared_to)
    shown = {*loaded.pinned, *(one.seq for one in decided if not one.hidden)}
    anchors = [seq for seq in row["anchors"] if seq]
    if at is None and row["system_seq"]:
        anchors += await event_log.prompts(database, event_log.log_of(row), row["system_seq"])
    tail = await ancestors.part(
        database,
        row,
        bound_tokens=bound_tokens,
        kept=state.kept,
        anchors=anchors,
        pinned=loaded.pinned if at is None else (),
        bodiless=[stub.seq for stub in state.stubs if not stub.chars and stub.seq not in shown],
    )
    read = {one.seq for one in tail.events}
    decided = (*(one for one in decided if one.seq in read), *loaded.decided)
    loaded = replace(
        loaded,
        turn=tail.turn,
        events=(*(replace(one, pinned=one.seq in loaded.pinned) for one in tail.events), *loaded.events),
        unread=Unread(tail.unread[0], tail.unread[2], tail.unread[1]) if tail.unread[0] else NOTHING_UNREAD,
        decided=decided,
        decisions=loaded.decisions if at is None else max((one.number for one in decided), default=0),
    )
    if loaded.used_at is None and 0 < loaded.epoch_head <= shared_to:
        loaded = await _as_parent_left_it(database, view, row, loaded)
    return loaded


async def _as_parent_left_it(database: Database, view: str, row: asyncpg.Record, loaded: LoadedView) -> LoadedView:
    """Return the view with its parent's last call in the epoch that both have: the provider's cache has its prefix."""
    parent = session_key(row["tenant_id"], row["parent"])
    last = await database.fetchrow(
        _LAST_CALL, session_id=parent, view=view, epoch=loaded.epoch, head=row["lineage_to"][-1]
    )
    if last is None:
        return loaded
    return replace(loaded, last_breakpoints=tuple(last["breakpoints"]), used_at=last["used_at"])


async def news(
    database: Database, tenant_id: UUID, view: str, held: LoadedView, model: str | None = None
) -> LoadedView | None:
    """Return a held view brought up to date; None when it must be loaded anew."""
    row = await database.fetchrow(
        _NEWS,
        session_id=held.session_id,
        tenant_id=tenant_id,
        view=view,
        head=held.head,
        epoch=held.epoch,
        created_at=held.created_at,
        most=NEWS_EVENTS_MAX,
        model=model,
        decisions=held.decisions,
    )
    if row is None:
        return None
    added = tuple(event(record) for record in row["events"])
    cover = await summaries.with_texts(database, row["cover"], (*held.cover, *held.folded))
    return replace(
        held,
        **_now(row),
        head=row["head"],
        real_head=row["head"],
        turn=added[-1].turn if added else held.turn,
        events=held.events + added,
        cover=cover,
        finer=held.finer if cover == held.cover else None,
        layers=layers.listed(row["layers"], held.layers),
    )


def _now(row: asyncpg.Record) -> dict[str, Any]:
    """Return the fields of a LoadedView that both statements read: those of the session, its view and the model."""
    return {
        "version": row["version"],
        "session_model": row["model"],
        "session_policy": (row["policy_name"], row["policy_version"]),
        "log_tokens": row["all_tokens"],
        "outside_tokens": row["outside_tokens"],
        "view": settings(row),
        "last_breakpoints": tuple(row["breakpoints"] or ()),
        "used_at": row["used_at"],
        "compaction": row["compaction"],
        "calibrations": tuple(map(calibrations.calibration, row["calibrations"])),
        "reported": reported(row),
        "learned": calibrations.learned(row["learned"]),
        "learned_version": row["learned_version"],
        "moved_to": row["line"],
    }


def reported(row: asyncpg.Record) -> Reported | None:
    """Return the usage reported of a view's last call, from its row; None if none was."""
    if row["reported_call"] is None:
        return None
    figures = (row["reported_epoch"], row["reported_head"], row["reported_tokens"], row["reported_counted"])
    return Reported(row["reported_call"], *figures, row["reported_outside"])


def settings(row: asyncpg.Record) -> ViewRow | None:
    """Return a view's settings and epoch from its row; None if there is no such view."""
    if row["window_tokens"] is None:
        return None
    policy = (row["view_policy_name"], row["view_policy_version"])
    return ViewRow(policy, row["view_model"], row["window_tokens"], row["view_epoch"], row["epochs"], row["afresh"])
