"""Reads of figures that only the pages show. Each statement names the tenant and runs within its row-level security.

No index serves searches by a part of a name, a model or the last change: they look at the newest sessions only.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from app.core.assembly.inputs import OBSERVED_VIEW
from app.core.record import CallManifest, UnknownVersion, from_json
from app.core.record.over_time import Damage, Need, StateRun
from app.store import event_log, texts
from app.store.engine import Database
from app.store.event_log import SessionLog
from app.store.ids import SessionRef
from app.store.rows import decode, parameters
from app.store.session_filter import has_prefix
from app.wings.pages.strata import CallColumn, EpochStart

SEARCHED_MAX: Final = 50_000
"""The newest sessions, or lines of sessions, in which a search looks."""
TROUBLED_MAX: Final = 10_000
"""The newest calls of the tenant in which a search looks for failed ones."""
COUNTED_MAX: Final = 1_000
RECENT: Final = 40


@dataclass(frozen=True, slots=True)
class SessionSearch:
    """Conditions that must all hold, and the order; a line of a session counts as the session."""

    prefix: str = ""
    find: str = ""
    model: str = ""
    since: datetime | None = None
    troubled: bool = False
    by_change: bool = False


_FOUND: Final = f"""
SELECT coalesce(root, session_id) AS id FROM (
    SELECT session_id, root, external_id, model, created_at, updated_at FROM sessions
    WHERE tenant_id = :tenant_id AND {{named}} AND (:scans OR root IS NULL)
    ORDER BY created_at DESC, session_id DESC LIMIT :most) s
WHERE strpos(lower(external_id), lower(:find)) > 0 AND (:model = '' OR model = :model)
  AND (:since::timestamptz IS NULL OR updated_at >= :since) AND (NOT :troubled OR session_id IN (
    SELECT session_id FROM (
        SELECT session_id, overflow, error IS NOT NULL AS failed FROM model_calls WHERE tenant_id = :tenant_id
        ORDER BY created_at DESC, call_id DESC LIMIT {TROUBLED_MAX}) c WHERE overflow OR failed))
GROUP BY 1 ORDER BY CASE WHEN :by_change THEN max(updated_at) ELSE min(created_at) END DESC, 1 DESC
LIMIT :limit OFFSET :skip
"""


async def find_sessions(
    database: Database, tenant_id: UUID, search: SessionSearch, *, limit: int, skip: int
) -> Sequence[UUID]:
    """Return the keys of sessions in the order of the search."""
    named = has_prefix("external_id", ":prefix") if search.prefix else ":prefix::text = ''"
    scans = bool(search.find or search.model or search.since or search.troubled or search.by_change)
    values = {**parameters(search), "scans": scans, "most": SEARCHED_MAX if scans else limit + skip}
    sql = _FOUND.format(named=named)
    return [row["id"] for row in await database.fetch(sql, tenant_id=tenant_id, limit=limit, skip=skip, **values)]


@dataclass(frozen=True, slots=True)
class RecentCalls:
    """The newest calls of a line, up to RECENT, oldest first, and the number of its calls, counted to COUNTED_MAX.

    Observed calls are not among them, since their contexts were not sent.
    """

    estimates: Sequence[int]
    targets: Sequence[int]
    failed: int
    last_at: datetime | None
    number: int


_RECENT: Final = f"""
SELECT l.id, c.*, n.number FROM unnest(:keys::uuid[]) AS l(id) CROSS JOIN LATERAL (
    SELECT coalesce(array_agg(estimate ORDER BY call_id), '{{}}') AS estimates,
           coalesce(array_agg(target ORDER BY call_id), '{{}}') AS targets, max(created_at) AS last_at,
           count(*) FILTER (WHERE overflow OR failed) AS failed
    FROM (SELECT call_id, estimate, target, created_at, overflow, error IS NOT NULL AS failed FROM model_calls
          WHERE session_id = l.id AND tenant_id = :tenant_id AND view <> '{OBSERVED_VIEW}'
          ORDER BY call_id DESC LIMIT {RECENT}) r) c
CROSS JOIN LATERAL (SELECT count(*) AS number FROM (
    SELECT FROM model_calls WHERE session_id = l.id AND tenant_id = :tenant_id AND view <> '{OBSERVED_VIEW}'
    LIMIT {COUNTED_MAX}) r) n
"""


async def recent_calls(database: Database, tenant_id: UUID, keys: Sequence[UUID]) -> Mapping[UUID, RecentCalls]:
    """Return the newest calls of lines by their keys."""
    rows = await database.fetch(_RECENT, keys=list(keys), tenant_id=tenant_id)
    return {row["id"]: decode(RecentCalls, row) for row in rows}


@dataclass(frozen=True, slots=True)
class CallPlace:
    """The place of a call among those of its view on its line, counted from 1 in order of time."""

    number: int
    total: int
    previous: UUID | None
    following: UUID | None


_PLACE: Final = """
SELECT count(*) FILTER (WHERE call_id <= :call_id) AS number, count(*) AS total,
       max(call_id::text) FILTER (WHERE call_id < :call_id) AS previous,
       min(call_id::text) FILTER (WHERE call_id > :call_id) AS following
FROM model_calls WHERE session_id = :session_id AND tenant_id = :tenant_id AND view = :view
"""

_NUMBERED: Final = """
SELECT call_id FROM model_calls WHERE session_id = :session_id AND tenant_id = :tenant_id AND view = :view
ORDER BY call_id LIMIT 1 OFFSET :before
"""


async def call_place(database: Database, ref: SessionRef, view: str, call_id: UUID) -> CallPlace:
    """Return the place of a call, whether it exists or not."""
    (row,) = await database.fetch(_PLACE, **ref._asdict(), view=view, call_id=call_id)
    previous, following = (None if row[name] is None else UUID(row[name]) for name in ("previous", "following"))
    return CallPlace(row["number"], row["total"], previous, following)


async def find_call(database: Database, ref: SessionRef, view: str, number: int) -> UUID | None:
    """Return the id of a view's call with this number, counted from 1 in order of time; None if there is none."""
    row = await database.fetchrow(_NUMBERED, **ref._asdict(), view=view, before=number - 1)
    return None if row is None else row["call_id"]


async def view_names(database: Database, ref: SessionRef) -> list[str]:
    """Return the names of the views that a line was read through, at most 50."""
    statement = (
        "SELECT view FROM views WHERE session_id = :session_id AND tenant_id = :tenant_id ORDER BY view LIMIT 50"
    )
    return [row["view"] for row in await database.fetch(statement, **ref._asdict())]


COLUMNS_MAX: Final = 600
STARTS_MAX: Final = 2_000
"""Number of beginnings of epochs that are read, the newest."""


# The largest call of each column stands for it. Only that call's manifest is read.
_COLUMNS: Final = """
WITH numbered AS (
    SELECT call_id, created_at, epoch, estimate, target, input_tokens, overflow, error IS NOT NULL AS wrong,
        row_number() OVER (ORDER BY call_id) AS number, count(*) OVER () AS total
    FROM model_calls WHERE session_id = :session_id AND tenant_id = :tenant_id AND view = :view
), placed AS (
    SELECT *, (number - 1) * least(total, :most) / total AS place FROM numbered
), chosen AS (
    SELECT DISTINCT ON (place) *, min(number) OVER part AS first, max(number) OVER part AS last,
        count(*) FILTER (WHERE overflow) OVER part AS refused,
        count(*) FILTER (WHERE wrong AND NOT overflow) OVER part AS failed
    FROM placed WINDOW part AS (PARTITION BY place) ORDER BY place, estimate DESC, number
)
SELECT c.*, m.manifest FROM chosen c JOIN model_calls m ON m.call_id = c.call_id
WHERE m.session_id = :session_id AND m.tenant_id = :tenant_id ORDER BY c.number
"""


async def read_columns(database: Database, ref: SessionRef, view: str, most: int = COLUMNS_MAX) -> list[CallColumn]:
    """Return a view's calls in at most `most` columns, oldest first."""
    rows = await database.fetch(_COLUMNS, **ref._asdict(), view=view, most=most)
    columns = []
    for row in rows:
        made = _manifest(row["manifest"])
        parts = {"by_source": made.by_source, "stalled": made.stalled, "unfit": bool(made.unfit)}
        columns.append(decode(CallColumn, row, **parts))
    return columns


def _manifest(stored: str) -> CallManifest:
    try:
        found = texts.loads(stored)
        return from_json(found) if isinstance(found, dict) else CallManifest()
    except UnknownVersion:
        return CallManifest()


_STARTS: Final = """
WITH numbered AS (
    SELECT call_id, epoch, created_at, row_number() OVER oldest AS number, lag(call_id) OVER oldest AS before,
        lag(epoch) OVER oldest AS former
    FROM model_calls WHERE session_id = :session_id AND tenant_id = :tenant_id AND view = :view
    WINDOW oldest AS (ORDER BY call_id)
)
SELECT n.epoch, n.number, n.call_id, n.before, n.created_at, e.cause, e.tokens_before, e.tokens_after
FROM numbered n LEFT JOIN epochs e ON e.session_id = :session_id AND e.view = :view AND e.epoch = n.epoch
WHERE n.epoch IS DISTINCT FROM n.former AND n.epoch > 0 ORDER BY n.number DESC LIMIT :limit
"""


async def epoch_starts(database: Database, ref: SessionRef, view: str, limit: int = STARTS_MAX) -> list[EpochStart]:
    """Return the calls with which a view's epochs begin, newest first."""
    rows = await database.fetch(_STARTS, **ref._asdict(), view=view, limit=limit)
    return [decode(EpochStart, row) for row in rows]


async def epoch_causes(database: Database, ref: SessionRef, view: str, epochs: Sequence[int]) -> dict[int, str]:
    """Return the causes of these epochs of a view, by number."""
    rows = await database.fetch(
        "SELECT epoch, cause FROM epochs WHERE session_id = :session_id AND tenant_id = :tenant_id AND view = :view "
        "AND epoch = ANY(:epochs::int[])",
        **ref._asdict(),
        view=view,
        epochs=list(epochs),
    )
    return {row["epoch"]: row["cause"] for row in rows}


CHANGES_MAX: Final = 40
"""Number of changes that are read, the newest."""
NEARBY: Final = 500
"""Number of events on each side among which the other half of a tool's use is searched."""


# An event is shown otherwise if the rows of its epoch that cover it differ, if the policy does, whose authors and types
# select events, or if it was erased. Rows of other types' stubs may cover it too: they divide a run, and no more.
_RUNS: Final = """
WITH decided AS (
    SELECT epoch, count(*) FILTER (WHERE cause = 'redaction') OVER (ORDER BY epoch) AS erasures,
        CASE WHEN evicted @> :seq::bigint THEN (
            SELECT string_agg(DISTINCT concat_ws(' ', r ->> 'disposition', r ->> 'reducer', r ->> 'reason'), '; ')
            FROM json_array_elements(evictions) r
            WHERE (r ->> 'from_seq')::bigint <= :seq AND (r ->> 'to_seq')::bigint >= :seq) END AS decision
    FROM epochs WHERE session_id = :session_id AND tenant_id = :tenant_id AND view = :view
), numbered AS (
    SELECT call_id, epoch, head, policy_name, policy_version, row_number() OVER oldest AS number,
        lag(call_id) OVER oldest AS before
    FROM model_calls WHERE session_id = :session_id AND tenant_id = :tenant_id AND view = :view
    WINDOW oldest AS (ORDER BY call_id)
), since AS (
    SELECT call_id, before, number, concat_ws(' ', policy_name, policy_version, erasures, decision) AS state
    FROM numbered LEFT JOIN decided USING (epoch) WHERE head >= :seq
), compared AS (
    SELECT *, lag(state) OVER oldest AS former, lag(number) OVER oldest AS previous, max(number) OVER () AS newest
    FROM since WINDOW oldest AS (ORDER BY number)
)
SELECT call_id, before, number AS first, coalesce(lead(previous) OVER (ORDER BY number), newest) AS last
FROM compared WHERE former IS DISTINCT FROM state ORDER BY number DESC LIMIT :limit
"""


async def state_runs(database: Database, ref: SessionRef, view: str, seq: int) -> list[StateRun]:
    """Return the runs of a view's calls since an event was logged, oldest first; of many, the last CHANGES_MAX."""
    rows = await database.fetch(_RUNS, **ref._asdict(), view=view, seq=seq, limit=CHANGES_MAX)
    return [decode(StateRun, row) for row in reversed(rows)]


@dataclass(frozen=True, slots=True)
class PlacedCall:
    """A call of a view, its number in the order of time, and the last event that its context reaches."""

    call_id: UUID
    number: int
    head: int


_PLACED: Final = """
SELECT call_id, head, number FROM (
    SELECT call_id, head, row_number() OVER (ORDER BY call_id) AS number FROM model_calls
    WHERE session_id = :session_id AND tenant_id = :tenant_id AND view = :view) placed
WHERE :wanted IN (call_id::text, number::text)
"""


async def placed_call(database: Database, ref: SessionRef, view: str, wanted: str) -> PlacedCall | None:
    """Return the call with a number or an id; None if the view has none."""
    row = await database.fetchrow(_PLACED, **ref._asdict(), view=view, wanted=wanted)
    return None if row is None else decode(PlacedCall, row)


async def counterpart(database: Database, ref: SessionRef, seq: int) -> int | None:
    """Return the seq of a tool call's result, or of a result's call, if it is one of the events nearby."""
    nearby = (max(1, seq - NEARBY), seq + NEARBY)
    rows = await event_log.read(database, SessionLog(ref.session_id), "seq, call_seq", *nearby)
    pairs = {row["call_seq"]: row["seq"] for row in rows if row["call_seq"]}
    return pairs.get(seq) or next((call for call, result in pairs.items() if result == seq), None)


EVENTS_MAX: Final = 4_000
"""Number of events that are searched for signs, the newest."""
PAIRS_MAX: Final = 100
"""Number of signs whose eviction is looked up, the newest."""


_RESULTS: Final = """
SELECT e.call_seq, e.seq FROM unnest(:ids::uuid[], :firsts::bigint[], :lasts::bigint[]) AS part (id, first, last)
JOIN events e ON e.session_id = part.id AND e.seq BETWEEN part.first AND part.last AND e.tenant_id = :tenant_id
WHERE e.call_seq = ANY(:calls::bigint[])
"""


async def results_of(database: Database, ref: SessionRef, calls: Sequence[int]) -> dict[int, int]:
    """Return the seqs of the results of tool calls, by the calls' seqs."""
    parts = await event_log.segments(database, SessionLog(ref.session_id))
    ids, firsts, lasts = zip(*((part.session_id, part.from_seq, part.to_seq) for part in parts), strict=True)
    values = {"ids": list(ids), "firsts": list(firsts), "lasts": list(lasts), "calls": list(calls)}
    rows = await database.fetch(_RESULTS, tenant_id=ref.tenant_id, **values)
    return {row["call_seq"]: row["seq"] for row in rows}


async def names_of(database: Database, ref: SessionRef, seqs: Iterable[int]) -> dict[int, str]:
    """Return the tools of these events, or their types if they have none, by seq."""
    rows = await event_log.read(database, SessionLog(ref.session_id), "seq, coalesce(tool, type) AS name", 1, 0, seqs)
    return {row["seq"]: row["name"] for row in rows}


# The epoch that was current when event `at` was appended is the last one opened before it.
_DAMAGE: Final = """
SELECT DISTINCT ON (need.at, need.seq) need.seq, need.at, need.tool, e.epoch, r ->> 'disposition' AS disposition,
    r ->> 'reducer' AS reducer, r ->> 'reason' AS reason
FROM unnest(:seqs::bigint[], :ats::bigint[], :tools::text[]) AS need (seq, at, tool)
CROSS JOIN LATERAL (
    SELECT epoch, evictions, evicted FROM epochs
    WHERE session_id = :session_id AND tenant_id = :tenant_id AND view = :view AND head < need.at
    ORDER BY epoch DESC LIMIT 1) e
CROSS JOIN LATERAL json_array_elements(e.evictions) r
WHERE e.evicted @> need.seq AND need.seq BETWEEN (r ->> 'from_seq')::bigint AND (r ->> 'to_seq')::bigint
ORDER BY need.at DESC, need.seq
"""


async def find_damage(database: Database, ref: SessionRef, view: str, needs: Iterable[Need]) -> list[Damage]:
    """Return the needs whose event a view had left out by then, of the newest PAIRS_MAX; newest first."""
    newest = sorted(needs, key=lambda need: need.at)[-PAIRS_MAX:]
    values = {
        "seqs": [need.seq for need in newest],
        "ats": [need.at for need in newest],
        "tools": [need.tool for need in newest],
    }
    return [decode(Damage, row) for row in await database.fetch(_DAMAGE, **ref._asdict(), view=view, **values)]
