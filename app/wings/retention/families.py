"""The families of sessions, which share events, and the last uses of sessions: read in bulk, without locks."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from uuid import UUID

from app.core.log.segments import session_of
from app.store.engine import Database, Executor
from app.store.ids import session_key
from app.store.session_filter import ListPosition
from app.wings.retention.rules import Life


async def oldest_sessions(
    database: Database, tenant_id: UUID, before: datetime, after: ListPosition | None, limit: int
) -> list[tuple[str, ListPosition]]:
    """Return sessions created before a time, oldest first, each with its place. They are found by creation and not by
    last use, because every append would have to update an index on that."""
    created_at, last = after or (None, None)
    rows = await database.fetch(
        "SELECT external_id, created_at, session_id FROM sessions WHERE tenant_id = :tenant_id AND root IS NULL "
        "AND created_at < :before AND (:created_at::timestamptz IS NULL "
        "OR (created_at, session_id) > (:created_at, :last::uuid)) ORDER BY created_at, session_id LIMIT :limit",
        tenant_id=tenant_id,
        before=before,
        created_at=created_at,
        last=last,
        limit=limit,
    )
    return [(row["external_id"], (row["created_at"], row["session_id"])) for row in rows]


async def find_families(reader: Executor, tenant_id: UUID, names: Sequence[str]) -> Mapping[str, frozenset[str]]:
    """Return for each session the names of itself, its forks, and their forks."""
    forks: dict[str, set[str]] = {}
    rest = set(names)
    while rest:
        forks |= {name: set() for name in rest}
        lines = await _lines(reader, tenant_id, rest)
        rows = await reader.fetch(
            "SELECT external_id, parent FROM sessions WHERE tenant_id = :tenant_id AND parent = ANY(:names::text[])",
            tenant_id=tenant_id,
            names=[*rest, *lines],
        )
        for row in rows:
            forks[session_of(row["parent"])].add(session_of(row["external_id"]))
        rest = {session_of(row["external_id"]) for row in rows} - forks.keys()
    return {name: frozenset(_descendants(name, forks)) for name in names}


async def _lines(reader: Executor, tenant_id: UUID, names: Collection[str]) -> list[str]:
    """Return the names of the sessions' further lines."""
    rows = await reader.fetch(
        "SELECT external_id FROM sessions WHERE root = ANY(:roots::uuid[]) AND tenant_id = :tenant_id",
        tenant_id=tenant_id,
        roots=[session_key(tenant_id, name) for name in names],
    )
    return [row["external_id"] for row in rows]


def _descendants(name: str, forks: Mapping[str, Collection[str]]) -> set[str]:
    found = {name}
    rest = [name]
    while rest:
        new = set(forks[rest.pop()]) - found
        found |= new
        rest += new
    return found


async def last_uses(reader: Executor, tenant_id: UUID, names: Collection[str]) -> dict[str, Life]:
    """Return by name when sessions were created and last used, without the uses in records of calls, which `add_calls`
    adds; calls whose records were deleted are included. Missing sessions are left out."""
    rows = await reader.fetch(
        "SELECT external_id, created_at, greatest(updated_at, streamed_until, called_at) AS used_at "
        "FROM sessions WHERE session_id = ANY(:keys::uuid[]) AND tenant_id = :tenant_id",
        keys=list(await _keys(reader, tenant_id, names)),
        tenant_id=tenant_id,
    )
    found: dict[str, Life] = {}
    for row in rows:
        name, one = session_of(row["external_id"]), Life(row["created_at"], row["used_at"])
        other = found.get(name, one)
        found[name] = Life(min(one.created_at, other.created_at), max(one.used_at, other.used_at))
    return found


async def add_calls(reader: Executor, tenant_id: UUID, known: Mapping[str, Life]) -> dict[str, Life]:
    """Return `known` with the uses that calls and outcomes record, and whether a compaction is open."""
    keys = await _keys(reader, tenant_id, known)
    calls = await reader.fetch(
        "SELECT session_id, max(greatest(created_at, reported_at)) AS used_at FROM model_calls "
        "WHERE session_id = ANY(:keys::uuid[]) AND tenant_id = :tenant_id GROUP BY session_id",
        keys=list(keys),
        tenant_id=tenant_id,
    )
    compacting = await reader.fetch(
        "SELECT DISTINCT session_id FROM compactions WHERE session_id = ANY(:keys::uuid[]) "
        "AND tenant_id = :tenant_id AND state IN ('scheduled', 'running')",
        keys=list(keys),
        tenant_id=tenant_id,
    )
    found = dict(known)
    for row in calls:
        name = keys[row["session_id"]]
        found[name] = replace(found[name], used_at=max(found[name].used_at, row["used_at"]))
    for row in compacting:
        name = keys[row["session_id"]]
        found[name] = replace(found[name], has_open_compaction=True)
    return found


async def _keys(reader: Executor, tenant_id: UUID, names: Collection[str]) -> dict[UUID, str]:
    """Return the keys of the rows of sessions and their lines, each with the session's name."""
    rows = [*names, *await _lines(reader, tenant_id, names)]
    return {session_key(tenant_id, row): session_of(row) for row in rows}
