"""Retention: rules for how long a tenant's data is kept, a preview of the data due, and its erasure by a worker."""

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

import structlog

from app.core.log.segments import session_of
from app.store import deletion, jobs
from app.store.engine import Database, Executor
from app.store.ids import session_key
from app.store.jobs import WorkDone
from app.store.session_filter import ListPosition
from app.wings.retention import store
from app.wings.retention.rules import DueSession, Life, RetentionDays, RuleDue, SessionRule, due_sessions, validate
from app.wings.retention.store import RetentionRow

PAGE: Final = 200
EXAMINED_MAX: Final = 20_000
"""Number of sessions after which a preview stops examining."""


@dataclass(frozen=True, slots=True)
class DueNow:
    """A preview: the data due by each rule, a page of the sessions, and the place of the next page."""

    rules: Sequence[RuleDue]
    items: Sequence[DueSession]
    next: ListPosition | None


@dataclass(frozen=True, slots=True)
class _ExaminedPage:
    """A page of examined sessions: those due, each with its place; the last one's place; the number examined."""

    due: Sequence[tuple[DueSession, ListPosition]]
    last: ListPosition
    number: int


class DataRetention:
    """Stores, previews and applies the retention rules of tenants."""

    def __init__(self, database: Database, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._database = database
        self._clock = clock

    async def get(self, tenant_id: UUID) -> RetentionRow:
        """Return a tenant's rules."""
        return await store.get_rules(self._database, tenant_id)

    async def put(self, tenant_id: UUID, rules: RetentionDays) -> RetentionRow:
        """Replace a tenant's rules. Raises InvalidRequest."""
        await store.put_rules(self._database, tenant_id, validate(rules))
        return await store.get_rules(self._database, tenant_id)

    async def preview(self, tenant_id: UUID, limit: int, after: ListPosition | None = None) -> DueNow:
        """Return the data due now; of the sessions, those after `after`, oldest first. Changes nothing."""
        rules, now = (await self.get(tenant_id)).rules, self._clock()
        found: list[tuple[DueSession, ListPosition]] = []
        examined, ended = 0, None
        async for page in self._examine(tenant_id, rules, now, after):
            found += page.due
            examined += page.number
            if examined >= EXAMINED_MAX:
                ended = page.last
                break
        shown = found[:limit]
        of_sessions = [
            _rule(rule, [one.created_at for one, _ in found if one.rule == rule], ended is not None)
            for rule in rules.session_rules()
        ]
        of_records = [
            await store.count_records(self._database, tenant_id, rule, now - timedelta(days=days))
            for rule, days in rules.record_rules().items()
        ]
        place = shown[-1][1] if len(found) > limit else ended
        return DueNow([*of_sessions, *of_records], [one for one, _ in shown], place)

    async def apply(self, tenant_id: UUID) -> Mapping[str, int]:
        """Erase a tenant's data that is due; return the number of erased items by rule. Each session is erased in its
        own transaction, with its forks, if under their locks all of them are still expired."""
        rules, now = (await self.get(tenant_id)).rules, self._clock()
        erased: dict[str, int] = {}
        async for page in self._examine(tenant_id, rules, now, None):
            for one, _ in page.due:
                for rule in await self._erase(tenant_id, rules, now, one.id):
                    erased[rule] = erased.get(rule, 0) + 1
        for kind, days in rules.record_rules().items():
            if number := await store.purge_records(self._database, tenant_id, kind, now - timedelta(days=days)):
                erased[kind] = number
        for name, number in erased.items():
            await jobs.count_work(self._database, WorkDone("retention", name, "erased"), number)
            structlog.get_logger().info("retention", tenant=str(tenant_id), rule=name, erased=number)
        return erased

    async def _examine(
        self, tenant_id: UUID, rules: RetentionDays, now: datetime, after: ListPosition | None
    ) -> AsyncIterator[_ExaminedPage]:
        """Yield the sessions that may be due, page by page, oldest first."""
        before = rules.created_before(now)
        while before is not None:
            page = await oldest_sessions(self._database, tenant_id, before, after, PAGE)
            if not page:
                return
            places = dict(page)
            shared = await find_families(self._database, tenant_id, list(places))
            lives = await _lives(self._database, tenant_id, frozenset().union(*shared.values()), rules, now)
            after = page[-1][1]
            yield _ExaminedPage(
                [(one, places[one.id]) for one in due_sessions(rules, now, lives, shared)], after, len(page)
            )
            if len(page) < PAGE:
                return

    async def _erase(self, tenant_id: UUID, rules: RetentionDays, now: datetime, name: str) -> list[SessionRule]:
        """Erase a session with its forks; return the rule for each, none if one of them is no longer expired."""
        async with self._database.transaction() as tx:
            rows = await deletion.lock_family(tx, tenant_id, name, lines=True)
            names = dict.fromkeys(map(session_of, rows))
            lives = await _lives(tx, tenant_id, names, rules, now)
            found = [rule for one in names if (rule := rules.expired_rule(lives[one], now)) is not None]
            if len(found) < len(names):
                return []
            await deletion.delete_locked(tx, tenant_id, rows)
        return found


async def _lives(
    reader: Executor, tenant_id: UUID, names: Collection[str], rules: RetentionDays, now: datetime
) -> Mapping[str, Life]:
    """Return the lives of sessions. Records of calls, which may be many, are read only for those expired otherwise."""
    known = await last_uses(reader, tenant_id, names)
    expired = {name: life for name, life in known.items() if rules.expired_rule(life, now)}
    return {**known, **await add_activity(reader, tenant_id, expired)} if expired else known


def _rule(rule: SessionRule, times: Sequence[datetime], more: bool) -> RuleDue:
    return RuleDue(rule, len(times), more, min(times, default=None), max(times, default=None))


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
    """Return for each session its name and the names of all sessions forked from it, directly or not."""
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
    """Return the life of each existing session by name. Calls that are still recorded, and open compactions, are added
    by `add_activity`; deleted calls count through `called_at`."""
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


async def add_activity(reader: Executor, tenant_id: UUID, known: Mapping[str, Life]) -> dict[str, Life]:
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
