"""Search for calls across a tenant's sessions, newest first; every combination of filters has a bounded plan.

One filter drives: an index returns its calls in order. The other filters are applied to at most SCAN_MAX of these calls
per page. A page that reaches this limit before it is full returns the position to continue from.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final
from uuid import UUID

from app.core.errors import InvalidRequest
from app.core.log.segments import is_line
from app.store import lines
from app.store.audit import CALLS, COLUMNS, IDS, NAME, NEWEST_ID, OF_LINES, CallRow, decode_call
from app.store.engine import Database
from app.store.ids import SessionRef, first_id, last_id, session_key

SCAN_MAX: Final = 2_000
CLASSES_MAX: Final = 31
"""Number of classes of evicted tokens; a count's class is its bit length."""
Place = tuple[datetime, UUID]
"""The creation time and the id of a call."""
FIRST: Final = UUID(int=0)
LAST: Final = UUID(int=2**128 - 1)

_ORDER: Final = "ORDER BY m.created_at DESC, m.call_id DESC"


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """Conditions on calls; None is no condition. `since` is inclusive, `until` exclusive.

    `session`: calls of a line, or of all lines of a session; with `summary` or `evicted_seq`, of its current line.
    `summary`: calls that showed it, of `session` or else of the session it was written for. `evicted_seq`: calls of
    `session` that did not show that event verbatim. `before` is where the last page ended: created_at and call_id.

    The others follow from these. `session_ids` are lines. `epochs` are views with epoch numbers, and need a single
    line. `newest_id` and `oldest_id` bound the ids of calls between `since` and `until`.
    """

    session: str | None = None
    model: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    summary: UUID | None = None
    evicted_seq: int | None = None
    overflow: bool | None = None
    min_evicted_tokens: int = 0
    before: Place | None = None
    session_ids: Sequence[UUID] | None = None
    epochs: Sequence[tuple[str, int]] | None = None
    newest_id: UUID = LAST
    oldest_id: UUID = FIRST


class CallSearch:
    """Searches recorded calls."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def calls(
        self, tenant_id: UUID, asked: Filters, limit: int
    ) -> tuple[list[tuple[str, CallRow]], Place | None]:
        """Return up to `limit` calls with their sessions' names, newest first, and the place to continue from.

        A page may have fewer although more follow: it scans at most SCAN_MAX calls. Raises InvalidRequest
        for `evicted_seq` without a session.
        """
        if asked.evicted_seq is not None and asked.session is None:
            raise InvalidRequest("evicted_seq needs a session: seqs count within one", field="evicted_seq")
        filters = await self._resolve(tenant_id, asked)
        if filters is None:
            return [], None
        found, after = await page(self._database, tenant_id, filters, limit)
        return [(session, call) for session, call in found if session is not None], after

    async def _resolve(self, tenant_id: UUID, asked: Filters) -> Filters | None:
        """Return the filters with the lines, epochs and ids that they mean; None when no call can match."""
        newest = LAST if asked.until is None else last_id(asked.until)
        oldest = FIRST if asked.since is None else first_id(asked.since)
        asked, session_id = replace(asked, newest_id=newest, oldest_id=oldest), None
        if asked.session is not None:
            if asked.summary is None and asked.evicted_seq is None and not is_line(asked.session):
                names = await lines.names(self._database, tenant_id, asked.session)
                return replace(asked, session_ids=list(names)) if names else None
            line = (
                None if is_line(asked.session) else await lines.current_line(self._database, tenant_id, asked.session)
            )
            session_id = session_key(tenant_id, line or asked.session)
        epochs: set[tuple[str, int]] | None = None
        if asked.summary is not None:
            home, found = await epochs_showing(self._database, tenant_id, asked.summary, session_id)
            if home is None:
                return None
            session_id, epochs = home, set(found)
        if asked.evicted_seq is not None and session_id is not None:
            evicted = set(await epochs_evicting(self._database, SessionRef(session_id, tenant_id), asked.evicted_seq))
            epochs = evicted if epochs is None else epochs & evicted
        if epochs is not None and not epochs:
            return None
        line_ids = None if session_id is None else [session_id]
        return replace(asked, session_ids=line_ids, epochs=None if epochs is None else sorted(epochs))


class _Statement:
    """SQL under construction, with the values of its parameters."""

    def __init__(self) -> None:
        self.values: dict[str, object] = {}

    def arg(self, name: str, value: object, kind: str) -> str:
        """Add a parameter and return its placeholder."""
        self.values[name] = value
        return f":{name}::{kind}"


def statement(tenant_id: UUID, filters: Filters, limit: int) -> tuple[str, dict[str, object]]:
    """Return the SQL of one page and its parameters."""
    built = _Statement()
    scan, order = _scan(built, tenant_id, filters)
    wanted = _where(built, filters)
    # The inner query already has the outer one's order, so the outer one stops as soon as it is full. The limit is a
    # parameter, so that the planner does not expect to read that many rows and sort them.
    sql = (
        f"SELECT {COLUMNS}, {NAME} FROM ({scan} LIMIT {built.arg('most', SCAN_MAX, 'int')}) m{wanted} {order} "
        f"LIMIT {built.arg('page', limit, 'int')}"
    )
    return sql, built.values


def scan_end(tenant_id: UUID, filters: Filters) -> tuple[str, dict[str, object]]:
    """Return the SQL of the position where an unfilled page ended; it gives no row if no calls were left to scan."""
    built = _Statement()
    scan, order = _scan(built, tenant_id, filters)
    most = built.arg("most", SCAN_MAX, "int")
    sql = f"SELECT created_at, call_id FROM ({scan} LIMIT {most}) m {order} OFFSET {most} - 1 LIMIT 1"
    return sql, built.values


def _scan(built: _Statement, tenant_id: UUID, filters: Filters) -> tuple[str, str]:
    """Return the SQL of the calls in the order of one index, and its ORDER BY clause."""
    built.values["tenant_id"] = tenant_id
    if filters.session_ids is not None:
        newest = filters.newest_id
        if filters.before is not None:
            newest = min(newest, UUID(int=max(0, filters.before[1].int - 1)))
        built.values |= {"oldest_id": filters.oldest_id, "newest_id": newest}
        if len(filters.session_ids) != 1:
            built.values |= {"session_ids": list(filters.session_ids), "most": SCAN_MAX}
            return OF_LINES, NEWEST_ID
        session = built.arg("session_id", filters.session_ids[0], "uuid")
        return f"{CALLS} AND m.session_id = {session} AND {IDS} {NEWEST_ID}", NEWEST_ID
    within = _time_range(built, filters)
    if filters.overflow:
        return f"{CALLS} AND m.overflow{within} {_ORDER}", _ORDER
    if filters.min_evicted_tokens > 0:
        lowest = built.arg("lowest", filters.min_evicted_tokens.bit_length(), "int")
        own = f"{within} AND m.evicted_class > 0 {_ORDER}"
        ways = (f"({CALLS} AND {n} >= {lowest} AND m.evicted_class = {n}{own})" for n in range(1, CLASSES_MAX + 1))
        return f"SELECT * FROM ({' UNION ALL '.join(ways)}) m {_ORDER}", _ORDER
    if filters.model is not None:
        return f"{CALLS} AND m.model = {built.arg('model', filters.model, 'text')}{within} {_ORDER}", _ORDER
    return f"{CALLS}{within} {_ORDER}", _ORDER


def _time_range(built: _Statement, filters: Filters) -> str:
    """Return the conditions on time, as the same text for all values, so that few statements are planned.

    No COALESCE: under row-level security it would prevent use of the index (docs/decisions/0020). Only one upper bound:
    with two, an index scan begins at the first and reads all calls between them.
    """
    at, id = filters.before or (None, LAST)
    if filters.until is not None and (at is None or filters.until <= at):
        at, id = filters.until, FIRST
    since, before = built.arg("since", filters.since, "timestamptz"), built.arg("before", at, "timestamptz")
    return (
        f" AND m.created_at >= CASE WHEN {since} IS NULL THEN '-infinity' ELSE {since} END AND"
        f" (m.created_at, m.call_id) < (CASE WHEN {before} IS NULL THEN 'infinity' ELSE {before} END,"
        f" {built.arg('before_id', id, 'uuid')})"
    )


def _where(built: _Statement, filters: Filters) -> str:
    """Return the WHERE clause of all filters, including the driving one."""

    def unless_null(condition: str, name: str, value: object, kind: str) -> str:
        given = built.arg(name, value, kind)
        return f"({given} IS NULL OR {condition.format(given)})"

    parts = [
        unless_null("m.model = {}", "model", filters.model, "text"),
        unless_null("m.overflow = {}", "overflow", filters.overflow, "boolean"),
        unless_null("m.evicted_tokens >= {}", "least", filters.min_evicted_tokens, "int"),
    ]
    if filters.session_ids is not None:
        parts.append(unless_null("m.created_at >= {}", "since", filters.since, "timestamptz"))
        parts.append(unless_null("m.created_at < {}", "until", filters.until, "timestamptz"))
    if filters.epochs is not None:
        views = built.arg("views", [view for view, _ in filters.epochs], "text[]")
        numbers = built.arg("numbers", [number for _, number in filters.epochs], "int[]")
        parts.append(f"(m.view, m.epoch) IN (SELECT * FROM unnest({views}, {numbers}))")
    return f" WHERE {' AND '.join(parts)}"


async def page(
    database: Database, tenant_id: UUID, filters: Filters, limit: int
) -> tuple[list[tuple[str | None, CallRow]], Place | None]:
    """Return up to `limit` calls with their sessions' names (None if erased since), and the position to continue from,
    None at the end."""
    if filters.epochs is not None:
        newest = await _newest_of(database, filters)
        if newest is None:
            return [], None
        filters = replace(filters, newest_id=newest)
    sql, values = statement(tenant_id, filters, limit + 1)
    rows = await database.fetch(sql, **values)
    found = [(row["external_id"], decode_call(row)) for row in rows[:limit]]
    if len(rows) > limit:
        return found, (rows[limit - 1]["created_at"], rows[limit - 1]["call_id"])
    sql, values = scan_end(tenant_id, filters)
    row = await database.fetchrow(sql, **values)
    return found, None if row is None else (row["created_at"], row["call_id"])


NEWEST_OF: Final = """
SELECT c.call_id FROM unnest(:views::text[], :numbers::int[]) AS w (view, epoch) CROSS JOIN LATERAL (
    SELECT m.call_id FROM model_calls m WHERE m.session_id = :session_id AND m.view = w.view AND m.epoch = w.epoch
      AND m.call_id < :before ORDER BY m.call_id DESC LIMIT 1
) c ORDER BY c.call_id DESC LIMIT 1
"""


async def _newest_of(database: Database, filters: Filters) -> UUID | None:
    """Return where the scan can begin: the newest call of the epochs before the end of the last page; None if none."""
    epochs = filters.epochs or ()
    end = filters.before[1] if filters.before else LAST
    row = await database.fetchrow(
        NEWEST_OF,
        session_id=(filters.session_ids or (None,))[0],
        views=[view for view, _ in epochs],
        numbers=[number for _, number in epochs],
        before=end,
    )
    return None if row is None else min(row["call_id"], filters.newest_id)


# A fork has copies of its parent's rows under the same ids.
SHOWING: Final = """
SELECT e.session_id, e.view, e.epoch FROM epochs e
WHERE e.session_id = (SELECT session_id FROM summaries WHERE id = :summary_id AND tenant_id = :tenant_id
                      AND (:session_id::uuid IS NULL OR session_id = :session_id)
                      ORDER BY origin IS NOT NULL, created_at, session_id LIMIT 1)
  AND e.folded @> ARRAY[:summary_id::uuid] AND EXISTS (
    SELECT FROM json_array_elements(e.frontier -> 'folds') f
    WHERE f ->> 'id' = :summary_id::uuid::text AND coalesce((f ->> 'shown')::boolean, true))
"""
EVICTING: Final = (
    "SELECT view, epoch FROM epochs "
    "WHERE session_id = :session_id AND tenant_id = :tenant_id AND evicted @> :seq::bigint"
)


async def epochs_showing(
    database: Database, tenant_id: UUID, summary: UUID, session_id: UUID | None
) -> tuple[UUID | None, list[tuple[str, int]]]:
    """Return the session of a summary, by default the one it was written for, and its epochs that show the summary.
    Returns (None, []) if no epoch shows it."""
    rows = await database.fetch(SHOWING, summary_id=summary, tenant_id=tenant_id, session_id=session_id)
    return rows[0]["session_id"] if rows else None, [(row["view"], row["epoch"]) for row in rows]


async def epochs_evicting(database: Database, ref: SessionRef, seq: int) -> list[tuple[str, int]]:
    """Return the epochs of a session in which an event is not shown verbatim."""
    rows = await database.fetch(EVICTING, **ref._asdict(), seq=seq)
    return [(row["view"], row["epoch"]) for row in rows]
