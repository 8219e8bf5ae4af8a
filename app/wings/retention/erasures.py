"""Erasures: a worker erases all sessions that a filter matches, one after the other, and writes a receipt.

An erasure is a row of its own, so that it survives a lost connection and a crash: each session is noted in the
transaction that erases it, and a worker that resumes finds the rest.
"""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final
from uuid import UUID

import structlog

from app.core.errors import ErasureCountConflict, IdempotencyConflict, NotFound
from app.core.lexicon.times import parse_time
from app.core.log.appends import check_names_values
from app.core.log.events import Json
from app.core.log.segments import session_of
from app.resources.sessions.service import check_metadata
from app.store import deletion, jobs, sessions
from app.store.engine import Database
from app.store.ids import new_id, session_key, session_ref
from app.store.jobs import WorkDone
from app.store.session_filter import ListPosition, SessionFilter
from app.wings.retention import store
from app.wings.retention.service import find_families
from app.wings.retention.store import ErasedSession, ErasureRow

PAGE: Final = 200
PREVIEWED_MAX: Final = 10_000
"""Number of matching sessions after which a preview stops counting."""
UNEXPECTED_MAX: Final = 100
"""An erasure of more sessions must state their number, as the preview or the refusal gives it."""


@dataclass(frozen=True, slots=True)
class ErasureRequest:
    """Conditions that a session to be erased must all meet.

    `forks`: its forks are erased even if they do not meet them. `expected` is the number of sessions, forks included.
    """

    metadata: Mapping[str, Json]
    model: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    forks: bool = False
    expected: int | None = None

    @property
    def text(self) -> str:
        """The stated conditions as JSON text, whose hash is in the receipt: keys sorted, no whitespace."""
        stated = ((name, getattr(self, name)) for name in ("metadata", "model", "since", "until"))
        return json.dumps(
            {name: value for name, value in stated if value is not None},
            sort_keys=True,
            separators=(",", ":"),
            ensure_ascii=False,
            default=lambda moment: moment.isoformat(),
        )


@dataclass(frozen=True, slots=True)
class MatchedSession:
    """A session that a filter matches; `kept`: it stays, since forks that do not match share its events."""

    id: str
    created_at: datetime
    kept: bool


@dataclass(frozen=True, slots=True)
class Forecast:
    """A preview: the numbers of sessions to be erased, forks included, and to be kept; lower bounds if `more`."""

    sessions: int
    kept: int
    more: bool
    items: Sequence[MatchedSession]
    next: ListPosition | None


class Erasures:
    """Previews, starts, reads and carries out erasures."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def preview(
        self, tenant_id: UUID, asked: ErasureRequest, limit: int, after: ListPosition | None = None
    ) -> Forecast:
        """Return the sessions to be erased after `after`, newest first. Changes nothing. Raises InvalidRequest."""
        _check(asked)
        found: list[tuple[MatchedSession, ListPosition]] = []
        erasable: set[str] = set()
        rest: ListPosition | None = None
        async for matches, names, place in self._pages(tenant_id, asked, after):
            rest = place
            found += matches
            erasable |= names
            if len(found) >= PREVIEWED_MAX:
                break
        shown = found[:limit]
        return Forecast(
            len(erasable),
            sum(one.kept for one, _ in found),
            rest is not None,
            [one for one, _ in shown],
            shown[-1][1] if len(found) > limit else rest,
        )

    async def _pages(
        self, tenant_id: UUID, asked: ErasureRequest, after: ListPosition | None
    ) -> AsyncIterator[tuple[list[tuple[MatchedSession, ListPosition]], set[str], ListPosition | None]]:
        """Yield pages of matching sessions, newest first: the sessions, the names to be erased, and the next place.

        The place is None after the last page. A name may be in several pages, since its relatives may be.
        """
        async for places, rest in self._matching(tenant_id, _filter(asked), after):
            shared = await find_families(self._database, tenant_id, list(places))
            all_names = frozenset().union(*shared.values())
            matches = await store.matching(self._database, tenant_id, all_names, _filter(asked))
            kept = {name for name in places if not asked.forks and not shared[name] <= matches}
            erasable = {one for name in places if name not in kept for one in shared[name]}
            found = [(MatchedSession(name, place[0], name in kept), place) for name, place in places.items()]
            yield found, erasable, rest

    async def _matching(
        self, tenant_id: UUID, filters: SessionFilter, after: ListPosition | None
    ) -> AsyncIterator[tuple[dict[str, ListPosition], ListPosition | None]]:
        """Yield pages of matching sessions, newest first: the place of each by name, and the next place, if any."""
        rest = after
        while True:
            rows, rest = await sessions.page(self._database, tenant_id, PAGE, rest, filters)
            names = {session_of(row.external_id): row.created_at for row in rows}
            places = {name: (created_at, session_key(tenant_id, name)) for name, created_at in names.items()}
            if rest is None and len(rows) == PAGE:
                rest = list(places.values())[-1]
            yield places, rest
            if rest is None:
                return

    async def create(
        self, tenant_id: UUID, asked: ErasureRequest, key_id: UUID | None, key: str | None
    ) -> tuple[ErasureRow, bool]:
        """Start an erasure; return it and True, or the one started under this idempotency `key` and False.

        Raises InvalidRequest, ErasureCountConflict if it would erase another number of sessions than expected, or
        IdempotencyConflict if the key was used with another request.
        """
        _check(asked)
        known = None if key is None else await store.find_by_key(self._database, tenant_id, key)
        if known is None:
            await self._check_expected(tenant_id, asked)
        async with self._database.transaction() as tx:
            row, new = await store.add(
                tx, tenant_id, new_id(), key_id=key_id, key=key, text=asked.text, forks=asked.forks
            )
            if new:
                await jobs.enqueue(tx, "erase", row.id, f"{tenant_id} {row.id}")
        if (row.filter_sha256, row.forks) != (store.text_sha256(asked.text), asked.forks):
            raise IdempotencyConflict.of_key(key)
        return await self._add_session_count(row), new

    async def _check_expected(self, tenant_id: UUID, asked: ErasureRequest) -> None:
        erasable: set[str] = set()
        async for _, names, _ in self._pages(tenant_id, asked, None):  # to the end: an erasure has no limit
            erasable |= names
        if len(erasable) != asked.expected and (asked.expected is not None or len(erasable) > UNEXPECTED_MAX):
            raise ErasureCountConflict(len(erasable), asked.expected)

    async def get(self, tenant_id: UUID, id: UUID) -> ErasureRow:
        """Return an erasure. Raises NotFound."""
        return await self._add_session_count(await self._find(tenant_id, id))

    async def page(self, tenant_id: UUID, after: UUID | None, limit: int) -> list[ErasureRow]:
        """Return erasures, newest first."""
        return [await self._add_session_count(row) for row in await store.page(self._database, tenant_id, after, limit)]

    async def sessions(self, tenant_id: UUID, id: UUID, after: UUID | None, limit: int) -> list[ErasedSession]:
        """Return the sessions that an erasure has erased so far, by id. Raises NotFound."""
        await self._find(tenant_id, id)
        return await store.erased_sessions(self._database, tenant_id, id, after, limit)

    async def _find(self, tenant_id: UUID, id: UUID) -> ErasureRow:
        row = await store.find(self._database, tenant_id, id)
        if row is None:
            raise NotFound(f"there is no erasure {id}", erasure=str(id))
        return row

    async def _add_session_count(self, row: ErasureRow) -> ErasureRow:
        """Return a row with the number of sessions erased so far."""
        if row.sessions is not None:
            return row
        return replace(row, sessions=await store.count_erased(self._database, row.tenant_id, row.id))

    async def work(self, tenant_id: UUID, id: UUID) -> None:
        """Carry out an erasure, or the rest of it, and write its receipt. Repeating it changes nothing."""
        row = await store.find(self._database, tenant_id, id)
        if row is None or row.filter is None:
            return
        asked = _read(row.filter, forks=row.forks)
        within = _filter(asked, made_before=row.created_at)
        kept, erased = 0, 0
        async for places, _ in self._matching(tenant_id, within, None):
            for name in places:
                number = await self._erase(row, within, name)
                kept += number is None
                erased += number or 0
        if erased:
            await jobs.count_work(self._database, WorkDone("retention", "erasure", "erased"), erased)
        if await store.finish(self._database, tenant_id, id, kept) is not None:
            structlog.get_logger().info(
                "erasure done", erasure=str(id), tenant=str(tenant_id), erased=erased, kept=kept
            )

    async def _erase(self, row: ErasureRow, asked: SessionFilter, name: str) -> int | None:
        """Erase a session with its forks; return the number of erased sessions, None if it stays."""
        async with self._database.transaction() as tx:
            rows = await deletion.lock_family(tx, row.tenant_id, name, lines=True)
            names = list(dict.fromkeys(map(session_of, rows)))
            matches = await store.matching(tx, row.tenant_id, names, asked)
            if name not in matches:  # it is gone, replaced by another of this name, or its metadata was changed
                return 0
            if not row.forks and not matches.issuperset(names):
                return None
            counts: dict[str, dict[str, int]] = {one: {} for one in names}
            for one in rows:
                own = counts[session_of(one)]
                found = await store.counts(tx, session_ref(row.tenant_id, one))
                own |= {table: own.get(table, 0) + number for table, number in found.items()}
            await deletion.delete(tx, row.tenant_id, rows)
            for one, own in counts.items():
                await store.record_erased(tx, session_ref(row.tenant_id, one), row.id, own)
        return len(names)


def _check(asked: ErasureRequest) -> None:
    check_metadata(asked.metadata)
    check_names_values(asked.metadata)


def _filter(asked: ErasureRequest, made_before: datetime | None = None) -> SessionFilter:
    until = min((one for one in (asked.until, made_before) if one is not None), default=None)
    return SessionFilter(since=asked.since, until=until, model=asked.model, metadata=asked.metadata, exact=True)


def _read(text: str, *, forks: bool) -> ErasureRequest:
    given = json.loads(text)
    moments = {name: parse_time(given[name]) for name in ("since", "until") if name in given}
    return ErasureRequest(given["metadata"], given.get("model"), moments.get("since"), moments.get("until"), forks)
