"""Sessions: rows in, rows out."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID, uuid5

import asyncpg

from app.core.errors import Conflict, NotFound, OutOfReach
from app.core.log.event import OpenCall, SessionState
from app.core.log.events import Json, canonical_json
from app.core.log.segments import Segments, ancestry
from app.core.log.turns import TurnState
from app.store.engine import Connection, Database

WITHOUT_KEYS: Final = ("model_calls", "changes", "change_counts", "deliveries")
"""What derives from a session and has no foreign key to it: gone after it, when nobody can add to it any more."""


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A session as it stands; `context_tokens` and `epoch` are those of its main view.

    `parent` of a fork: whose it is, and at which seq. `lineage` is what it shares with its ancestors. `outside_tokens`
    is what its client says it sends beside the request.
    """

    session_id: UUID
    external_id: str
    policy: tuple[str, int]
    model: str | None
    estimator: str
    metadata: Mapping[str, Json]
    state: SessionState
    epoch: int
    context_tokens: int
    created_at: datetime
    updated_at: datetime
    parent: tuple[str, int] | None = None
    lineage: Segments = ()
    outside_tokens: int | None = None


def session_key(tenant_id: UUID, external_id: str) -> UUID:
    """The row's key, a function of the caller's own id."""
    return uuid5(tenant_id, external_id)


_SELECT = """
SELECT s.*, coalesce(v.epoch, 0) AS epoch, s.tokens + coalesce(v.carry_tokens, 0) AS context_tokens
FROM sessions s LEFT JOIN views v ON v.session_id = s.session_id AND v.view = 'main'
"""


async def get(database: Database, tenant_id: UUID, external_id: str) -> SessionRow:
    """Raises NotFound."""
    sql = _SELECT + "WHERE s.session_id = $1 AND s.tenant_id = $2"
    row = await database.fetchrow(sql, session_key(tenant_id, external_id), tenant_id)
    if row is None:
        raise NotFound(f"there is no session {external_id!r}", session=external_id)
    return _row(row)


async def name_of(database: Database, session_id: UUID, tenant_id: UUID) -> str:
    """The caller's own id of a session. Raises NotFound."""
    row = await database.fetchrow(
        "SELECT external_id FROM sessions WHERE session_id = $1 AND tenant_id = $2", session_id, tenant_id
    )
    if row is None:
        raise NotFound("the session has been erased")
    return str(row["external_id"])


async def count(connection: Connection, tenant_id: UUID, most: int) -> int:
    """How many sessions a tenant has, counted up to `most`."""
    row = await connection.fetchrow(
        "SELECT count(*) AS n FROM (SELECT FROM sessions WHERE tenant_id = $1 LIMIT $2) s", tenant_id, most
    )
    return 0 if row is None else int(row["n"])


def within(names: str, prefix: str) -> str:
    """The condition that names begin with what a placeholder stands for, such that an index can be used for it: in
    the order of bytes, all that begin with it stand before it and a tilde, which no name holds."""
    return f"{names} ~>=~ {prefix}::text AND {names} ~<~ ({prefix}::text || '~')"


async def page(
    database: Database,
    tenant_id: UUID,
    limit: int,
    after: tuple[datetime, UUID] | None,
    parent: str | None = None,
    prefix: str = "",
) -> list[SessionRow]:
    """Those whose names begin with `prefix`, newest first; only the forks of `parent` if that is given."""
    sql, given = listing(parent, prefix)
    rows = await database.fetch(sql, tenant_id, limit, *(after or (None, None)), *given)
    return [_row(row) for row in rows]


def listing(parent: str | None, prefix: str) -> tuple[str, list[str]]:
    """The SQL of a page, and its arguments behind tenant, limit and place."""
    wanted, given = "", []
    if parent is not None:
        given.append(parent)
        wanted += f"AND s.parent = ${4 + len(given)} "
    if prefix:
        given.append(prefix)
        wanted += f"AND {within('s.external_id', f'${4 + len(given)}')} "
    sql = _SELECT + (
        "WHERE s.tenant_id = $1 AND ($3::timestamptz IS NULL OR (s.created_at, s.session_id) < ($3, $4::uuid)) "
        + wanted
        + "ORDER BY s.created_at DESC, s.session_id DESC LIMIT $2"
    )
    return sql, given


async def create(
    connection: Connection | Database,
    tenant_id: UUID,
    external_id: str,
    *,
    estimator: str,
    model: str | None = None,
    policy: tuple[str, int] = ("default", 1),
    metadata: Mapping[str, Json] | None = None,
    outside_tokens: int | None = None,
) -> bool:
    """Whether the session is new."""
    sql = """
        INSERT INTO sessions
            (session_id, tenant_id, external_id, estimator, model, policy_name, policy_version, metadata,
             outside_tokens)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT DO NOTHING RETURNING session_id
    """
    row = await connection.fetchrow(
        sql,
        session_key(tenant_id, external_id),
        tenant_id,
        external_id,
        estimator,
        model,
        *policy,
        canonical_json(metadata or {}),
        outside_tokens,
    )
    return row is not None


@dataclass(frozen=True, slots=True)
class Room:
    """What a view has to fill: its window, and the target within it."""

    window_tokens: int
    target: int


async def lock(tx: Connection, tenant_id: UUID, external_id: str) -> tuple[str | None, tuple[str, int]] | None:
    """The model and policy of a session that nobody else changes until the transaction ends; None without one."""
    row = await tx.fetchrow(
        "SELECT model, policy_name, policy_version FROM sessions WHERE session_id = $1 AND tenant_id = $2 "
        "FOR NO KEY UPDATE",
        session_key(tenant_id, external_id),
        tenant_id,
    )
    return None if row is None else (row["model"], (row["policy_name"], row["policy_version"]))


async def followers(
    tx: Connection, tenant_id: UUID, external_id: str, policy: tuple[str, int]
) -> Mapping[str, str | None]:
    """The models of the main view and of those that are read with the session's `policy`, by view, locked."""
    rows = await tx.fetch(
        "SELECT view, model FROM views WHERE session_id = $1 AND tenant_id = $2 "
        "AND (view = 'main' OR (policy_name, policy_version) = ($3, $4)) ORDER BY view FOR UPDATE",
        session_key(tenant_id, external_id),
        tenant_id,
        *policy,
    )
    return {row["view"]: row["model"] for row in rows}


async def give_policy(
    tx: Connection, tenant_id: UUID, external_id: str, view: str, policy: tuple[str, int], room: Room
) -> None:
    """Let a view be planned afresh with another policy.

    It stands at an epoch that has not been written, so that whatever was read of it before no longer applies, and a
    context that is being planned on that is planned again.
    """
    await tx.execute(
        "UPDATE views SET policy_name = $4, policy_version = $5, window_tokens = $6, target = $7, carry_tokens = 0, "
        "epoch = epochs + 1, epochs = epochs + 1, afresh = 'policy' "
        "WHERE session_id = $1 AND tenant_id = $2 AND view = $3",
        session_key(tenant_id, external_id),
        tenant_id,
        view,
        *policy,
        room.window_tokens,
        room.target,
    )


async def update(
    tx: Connection,
    tenant_id: UUID,
    external_id: str,
    *,
    model: str | None,
    estimator: str | None,
    policy: tuple[str, int] | None,
    metadata: Mapping[str, Json] | None,
    outside_tokens: int | None = None,
) -> None:
    """Change what is given; once a session has events its estimator stays, since they were counted by it."""
    sql = """
        UPDATE sessions SET model = coalesce($3, model), policy_name = coalesce($4, policy_name),
            policy_version = coalesce($5, policy_version), metadata = coalesce($6, metadata),
            estimator = CASE WHEN head = 0 THEN coalesce($7, estimator) ELSE estimator END,
            outside_tokens = coalesce($8, outside_tokens), updated_at = now()
        WHERE session_id = $1 AND tenant_id = $2
    """
    name, version = policy or (None, None)
    document = None if metadata is None else canonical_json(metadata)
    await tx.execute(
        sql, session_key(tenant_id, external_id), tenant_id, model, name, version, document, estimator, outside_tokens
    )


async def family(tx: Connection, tenant_id: UUID, external_id: str, *, seq: int = 0) -> list[str]:
    """A session, and of its forks and theirs those that share its event `seq`, parents first; empty without it.

    All are locked until the transaction ends, each before its forks are looked for: whoever makes one holds the same
    lock of its parent.
    """
    found: list[str] = []
    rest = [external_id]
    while rest:
        name = rest.pop(0)
        if await lock(tx, tenant_id, name) is None:
            continue
        found.append(name)
        forks = await tx.fetch(
            "SELECT external_id FROM sessions WHERE tenant_id = $1 AND parent = $2 AND parent_at >= $3 "
            "ORDER BY external_id",
            tenant_id,
            name,
            seq,
        )
        rest += [row["external_id"] for row in forks]
    return found


async def erase(
    database: Database, tenant_id: UUID, external_id: str, *, forks: bool = False, prefix: str = ""
) -> list[UUID]:
    """Delete a session and all that derives from it; the ids of what is gone, none if there was no such session.

    Forks go with it only if they may (`forks`): without what they share with it they cannot be read. Raises Conflict,
    or OutOfReach when the name of one does not begin with `prefix`.
    """
    async with database.transaction() as tx:
        names = await family(tx, tenant_id, external_id)
        if not all(name.startswith(prefix) for name in names):
            raise OutOfReach(f"session {external_id!r} shares its events with sessions that this key is not for")
        if len(names) > 1 and not forks:
            others = f"{names[1]!r}" + (f" and {len(names) - 2} more" if len(names) > 2 else "")
            detail = f"session {external_id!r} shares its events with {others}; erase them with it, or before it"
            raise Conflict(detail, session=external_id, forks=names[1:])
        keys = [session_key(tenant_id, name) for name in reversed(names)]
        for key in keys:
            await _erase(tx, tenant_id, key)
    return keys


async def _erase(tx: Connection, tenant_id: UUID, key: UUID) -> None:
    await tx.execute("SELECT set_config('palimpsest.erasing', $1, true)", str(key))
    await tx.fetchrow(
        "DELETE FROM sessions WHERE session_id = $1 AND tenant_id = $2 "
        "RETURNING CASE WHEN streamed_until > now() THEN pg_notify('palimpsest_stream', session_id::text) END",
        key,
        tenant_id,
    )
    for table in WITHOUT_KEYS:
        await tx.execute(f"DELETE FROM {table} WHERE session_id = $1 AND tenant_id = $2", key, tenant_id)


def state_of(row: asyncpg.Record) -> SessionState:
    """The part of a sessions row that an append stands on."""
    return SessionState(
        head=row["head"],
        turns=row["turns"],
        tokens=row["tokens"],
        open_calls=open_calls(row["open_calls"]),
        turn=TurnState(row["turn_id"], row["awaits_user"]),
    )


def open_calls(stored: str) -> dict[str, OpenCall]:
    """Calls by their ids, as a sessions row has them."""
    calls: Mapping[str, Mapping[str, Json]] = json.loads(stored)
    return {call_id: OpenCall(call["seq"], call["tool"]) for call_id, call in calls.items()}


def _row(row: asyncpg.Record) -> SessionRow:
    return SessionRow(
        session_id=row["session_id"],
        external_id=row["external_id"],
        policy=(row["policy_name"], row["policy_version"]),
        model=row["model"],
        estimator=row["estimator"],
        metadata=json.loads(row["metadata"]),
        state=state_of(row),
        epoch=row["epoch"],
        context_tokens=max(0, row["context_tokens"]),
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        parent=None if row["parent"] is None else (row["parent"], row["parent_at"]),
        lineage=ancestry(row["lineage_ids"], row["lineage_to"]),
        outside_tokens=row["outside_tokens"],
    )
