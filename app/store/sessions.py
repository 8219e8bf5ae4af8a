"""Sessions: their rows, names, settings and list."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final
from uuid import UUID

import asyncpg

from app.core.errors import InvalidRequest, NotFound
from app.core.log.appends import OpenCall, SessionState, TurnState
from app.core.log.conversation import START, Tip
from app.core.log.events import Json, canonical_json
from app.core.log.segments import is_line, session_of
from app.store.engine import Connection, Database, Executor
from app.store.event_log import SessionLog, log_of
from app.store.ids import SessionRef, session_key, session_ref
from app.store.rows import decode
from app.store.session_filter import ORDER, SCAN_MAX, ListPosition, SessionFilter, conditions, scan_conditions

DEFAULT_POLICY: Final = ("default", 1)
"""The policy of sessions that name none."""


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A session's row; `epoch`, `target` and `carry_tokens` are its main view's.

    `parent` of a fork is the parent's external id and the last shared seq. `outside_tokens` are the tokens that the
    client sends in addition to the request. `decisions` is the number of the newest request that decided on visibility,
    `redactions` the count of erased events. `system_seq`, `tools_seq`, `user_seqs` and `pinned_seqs` are the events
    that every context needs, however old. `carry_tokens` are the tokens of the context that opened the epoch less those
    of the log then; added to the log's tokens they estimate the next context. `line` is the id of the current line,
    None if it is this one; `root` of a further line is the key of the session's own row. `tip` ends the hash chain.
    """

    session_id: UUID
    tenant_id: UUID
    external_id: str
    log: SessionLog
    policy: tuple[str, int]
    model: str | None
    estimator: str
    metadata: Mapping[str, Json]
    outside_tokens: int | None
    state: SessionState
    system_seq: int
    tools_seq: int
    user_seqs: tuple[int, ...]
    pinned_seqs: tuple[int, ...]
    decisions: int
    redactions: int
    parent: tuple[str, int] | None
    created_at: datetime
    updated_at: datetime
    epoch: int
    target: int | None
    carry_tokens: int
    line: str | None
    root: UUID | None
    tip: Tip

    @property
    def ref(self) -> SessionRef:
        """The ids of the row and of its tenant."""
        return SessionRef(self.session_id, self.tenant_id)

    @property
    def context_tokens(self) -> int:
        """Estimate of the main view's next context, in tokens."""
        return max(0, self.state.tokens + self.carry_tokens)


_SELECT: Final = """
SELECT s.session_id, s.tenant_id, s.external_id, s.policy_name, s.policy_version, s.model, s.estimator, s.metadata,
       s.outside_tokens, s.head, s.turns, s.turn_id, s.awaits_user, s.tokens, s.open_calls, s.system_seq, s.tools_seq,
       s.user_seqs, s.pinned_seqs, s.decisions, s.redactions, s.parent, s.parent_at, s.lineage_ids, s.lineage_to,
       s.created_at, s.updated_at, coalesce(v.epoch, 0) AS epoch, v.target, coalesce(v.carry_tokens, 0) AS carry_tokens,
       s.line, s.root, s.chained_seq, s.chained, s.chain_tip
FROM sessions s LEFT JOIN views v ON v.session_id = s.session_id AND v.view = 'main'
"""
ONE: Final = f"{_SELECT} WHERE s.session_id = :session_id AND s.tenant_id = :tenant_id"
WITH_LINES: Final = f"{_SELECT} WHERE s.session_id = ANY(:keys::uuid[]) AND s.tenant_id = :tenant_id"
LISTED: Final = f"{_SELECT} WHERE s.tenant_id = :tenant_id AND "
"""The beginning of a page's statement."""


async def find(connection: Executor, ref: SessionRef) -> SessionRow | None:
    """Return a session by its key; None if there is none."""
    row = await connection.fetchrow(ONE, **ref._asdict())
    return None if row is None else _row(row)


async def lock(tx: Connection, ref: SessionRef) -> SessionRow | None:
    """Return a session, locked against changes and appends until the transaction ends; None if there is none."""
    row = await tx.fetchrow(f"{ONE} FOR NO KEY UPDATE OF s", **ref._asdict())
    return None if row is None else _row(row)


async def get(connection: Executor, tenant_id: UUID, external_id: str) -> SessionRow:
    """Return a session by its external id. Raises NotFound."""
    return _require(await find(connection, session_ref(tenant_id, external_id)), external_id)


async def get_line(connection: Executor, tenant_id: UUID, external_id: str) -> SessionRow:
    """Return one of a session's lines, with the session's time of creation. Raises NotFound."""
    row = await get(connection, tenant_id, external_id)
    root = None if row.root is None else await find(connection, SessionRef(row.root, tenant_id))
    return row if root is None else replace(row, created_at=root.created_at)


async def get_locked(tx: Connection, tenant_id: UUID, external_id: str) -> SessionRow:
    """Return a session by its external id, locked as by `lock`. Raises NotFound."""
    return _require(await lock(tx, session_ref(tenant_id, external_id)), external_id)


def _require(row: SessionRow | None, external_id: str) -> SessionRow:
    if row is None:
        raise NotFound(f"there is no session {external_id!r}", session=external_id)
    return row


async def name_of(database: Database, ref: SessionRef) -> str:
    """Return the external id of a session. Raises NotFound."""
    row = await database.fetchrow(
        "SELECT external_id FROM sessions WHERE session_id = :session_id AND tenant_id = :tenant_id", **ref._asdict()
    )
    if row is None:
        raise NotFound("the session has been erased")
    return str(row["external_id"])


async def count(tx: Connection, tenant_id: UUID, limit: int) -> int:
    """Count a tenant's sessions, up to `limit`; all lines of a session count as one. Other transactions that count them
    wait for this one to end, so that each sees the sessions created before it."""
    await tx.execute("SELECT pg_advisory_xact_lock(hashtextextended(:key, 0))", key=f"sessions of {tenant_id}")
    row = await tx.fetchrow(
        "SELECT count(*) AS n FROM (SELECT 1 AS one FROM sessions "
        "WHERE tenant_id = :tenant_id AND root IS NULL LIMIT :limit) s",
        tenant_id=tenant_id,
        limit=limit,
    )
    return 0 if row is None else int(row["n"])


async def page(
    database: Database, tenant_id: UUID, limit: int, after: ListPosition | None, filters: SessionFilter
) -> tuple[list[SessionRow], ListPosition | None]:
    """Return sessions, newest first; if fewer than `limit` though more may follow, also where to resume after. Each
    has the values of its current line, but the session's time of creation."""
    floor = None
    if filters.scans:
        sql, values = scan_end(tenant_id, after, filters)
        row = await database.fetchrow(sql, **values)
        floor = None if row is None else (row["created_at"], row["session_id"])
    sql, values = listing(tenant_id, limit, after, filters, floor)
    listed = [_row(row) for row in await database.fetch(sql, **values)]
    pairs = zip(listed, await _with_current_lines(database, tenant_id, listed), strict=True)
    rows = [current for own, current in pairs if filters.holds(current.model, current.metadata, own.metadata)]
    if len(rows) < len(listed) == limit:
        return rows, (listed[-1].created_at, listed[-1].session_id)
    return rows, floor if len(listed) < limit else None


async def with_keys(database: Database, tenant_id: UUID, keys: Sequence[UUID]) -> list[SessionRow]:
    """Return the sessions with these keys, in the order of `keys`, as `page` does."""
    rows = {row["session_id"]: _row(row) for row in await database.fetch(WITH_LINES, keys=keys, tenant_id=tenant_id)}
    return await _with_current_lines(database, tenant_id, [rows[key] for key in keys if key in rows])


async def _with_current_lines(database: Database, tenant_id: UUID, rows: list[SessionRow]) -> list[SessionRow]:
    """Return sessions with the values of their current lines."""
    lines = {session_key(tenant_id, row.line): row for row in rows if row.line is not None}
    if not lines:
        return rows
    found = await database.fetch(WITH_LINES, keys=list(lines), tenant_id=tenant_id)
    current = {lines[row["session_id"]].session_id: _row(row) for row in found}
    return [
        replace(current[row.session_id], created_at=row.created_at) if row.session_id in current else row
        for row in rows
    ]


def listing(
    tenant_id: UUID, limit: int, after: ListPosition | None, filters: SessionFilter, floor: ListPosition | None
) -> tuple[str, dict[str, object]]:
    """Return the SQL of a page and its parameters."""
    sql, values = conditions(filters, after)
    more, others = scan_conditions(filters, floor)
    values |= {**others, "tenant_id": tenant_id, "limit": limit}
    return f"{LISTED}{sql}{more} {ORDER} LIMIT :limit", values


def scan_end(tenant_id: UUID, after: ListPosition | None, filters: SessionFilter) -> tuple[str, dict[str, object]]:
    """Return the SQL for the last session that a page reads; it gives no row if the page reads all that are left."""
    sql, values = conditions(filters, after)
    values |= {"tenant_id": tenant_id, "most": SCAN_MAX}
    select = "SELECT s.created_at, s.session_id FROM sessions s WHERE s.tenant_id = :tenant_id"
    return f"{select} AND {sql} {ORDER} OFFSET :most - 1 LIMIT 1", values


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """Settings of a session to create or change; None: the default, or the current value."""

    model: str | None = None
    policy: tuple[str, int] | None = None
    metadata: Mapping[str, Json] | None = None
    outside_tokens: int | None = None


async def create(
    connection: Executor, tenant_id: UUID, external_id: str, given: SessionSettings, *, estimator: str
) -> bool:
    """Create a session; return False if it exists."""
    policy = given.policy or DEFAULT_POLICY
    row = await connection.fetchrow(
        "INSERT INTO sessions (session_id, tenant_id, external_id, estimator, model, policy_name, policy_version, "
        "metadata, outside_tokens) VALUES (:session_id, :tenant_id, :name, :estimator, :model, :policy_name, "
        ":policy_version, :metadata, :outside_tokens) ON CONFLICT DO NOTHING RETURNING session_id",
        **session_ref(tenant_id, external_id)._asdict(),
        name=external_id,
        estimator=estimator,
        model=given.model,
        policy_name=policy[0],
        policy_version=policy[1],
        metadata=canonical_json(given.metadata or {}),
        outside_tokens=given.outside_tokens,
    )
    return row is not None


def check_name(external_id: str, field: str = "sid") -> None:
    """Raise InvalidRequest for a name that is reserved for lines of sessions."""
    if is_line(external_id):
        detail = f"{external_id!r} names a line of the session {session_of(external_id)!r}; no new session can have it"
        raise InvalidRequest(detail, field=field)


@dataclass(frozen=True, slots=True)
class ViewBudget:
    """A view's window, and the target within it, in tokens."""

    window_tokens: int
    target: int


async def lock_views_on_policy(tx: Connection, session: SessionRow, *, main: bool) -> Mapping[str, str | None]:
    """Lock the views with the session's policy, and with `main` the main view, too; return their models, by view."""
    rows = await tx.fetch(
        "SELECT view, model FROM views WHERE session_id = :session_id "
        "AND ((view = 'main' AND :main) OR (policy_name, policy_version) = (:policy_name, :policy_version)) "
        "ORDER BY view FOR UPDATE",
        session_id=session.session_id,
        policy_name=session.policy[0],
        policy_version=session.policy[1],
        main=main,
    )
    return {row["view"]: row["model"] for row in rows}


async def set_view_policy(
    tx: Connection, session_id: UUID, view: str, policy: tuple[str, int], room: ViewBudget
) -> None:
    """Change a view's policy, and have it planned from scratch. The view moves to the next epoch number, which no
    epoch gets: data read before is stale, and a context being planned from it is planned again."""
    await tx.execute(
        "UPDATE views SET policy_name = :policy_name, policy_version = :policy_version, "
        "window_tokens = :window_tokens, target = :target, carry_tokens = 0, epoch = epochs + 1, epochs = epochs + 1, "
        "afresh = 'policy' WHERE session_id = :session_id AND view = :view",
        session_id=session_id,
        view=view,
        policy_name=policy[0],
        policy_version=policy[1],
        window_tokens=room.window_tokens,
        target=room.target,
    )


async def update(tx: Connection, session_id: UUID, given: SessionSettings, estimator: str | None) -> None:
    """Change the values that are not None. The estimator of a session with events stays, since it counted them."""
    name, version = given.policy or (None, None)
    await tx.execute(
        "UPDATE sessions SET model = coalesce(:model, model), policy_name = coalesce(:name, policy_name), "
        "policy_version = coalesce(:version, policy_version), metadata = coalesce(:metadata, metadata), "
        "estimator = CASE WHEN head = 0 THEN coalesce(:estimator, estimator) ELSE estimator END, "
        "outside_tokens = coalesce(:outside_tokens, outside_tokens), updated_at = now() WHERE session_id = :session_id",
        session_id=session_id,
        model=given.model,
        name=name,
        version=version,
        metadata=None if given.metadata is None else canonical_json(given.metadata),
        estimator=estimator,
        outside_tokens=given.outside_tokens,
    )


def open_calls(stored: str) -> dict[str, OpenCall]:
    """Return the open calls of a session's row, by call id."""
    calls: Mapping[str, Mapping[str, Json]] = json.loads(stored)
    return {call_id: OpenCall(call["seq"], call["tool"]) for call_id, call in calls.items()}


def _row(row: asyncpg.Record) -> SessionRow:
    return decode(
        SessionRow,
        row,
        log=log_of(row),
        metadata=json.loads(row["metadata"]),
        state=SessionState(
            head=row["head"],
            turns=row["turns"],
            tokens=row["tokens"],
            open_calls=open_calls(row["open_calls"]),
            turn=TurnState(row["turn_id"], row["awaits_user"]),
        ),
        parent=None if row["parent"] is None else (row["parent"], row["parent_at"]),
        tip=Tip(row["chained_seq"], row["chained"], row["chain_tip"] or START),
    )
