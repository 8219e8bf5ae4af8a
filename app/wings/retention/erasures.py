"""Erasures: a worker erases the sessions that a filter matches, one after the other, and writes a receipt.

An erasure is a row of its own, so that it survives a lost connection and a crash: each session is noted in the
transaction that erases it, and a worker that resumes finds the rest.
"""

import json
from collections import Counter
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
from app.store.ids import session_key, session_ref
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
    def filter_text(self) -> str:
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
    """A preview after a position: numbers of sessions to erase, with forks, and to keep; lower bounds if `more`."""

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
        self, tenant_id: UUID, request: ErasureRequest, limit: int, after: ListPosition | None = None
    ) -> Forecast:
        """Return the matching sessions after `after`, newest first, and how many would go. Raises InvalidRequest."""
        _check(request)
        found: list[tuple[MatchedSession, ListPosition]] = []
        erasable: set[str] = set()
        next_position: ListPosition | None = None
        async for matches, names, position in self._pages(tenant_id, request, after):
            next_position = position
            found += matches
            erasable |= names
            if len(found) >= PREVIEWED_MAX:
                break
        shown = found[:limit]
        return Forecast(
            len(erasable),
            sum(one.kept for one, _ in found),
            next_position is not None,
            [one for one, _ in shown],
            shown[-1][1] if len(found) > limit else next_position,
        )

    async def _pages(
        self, tenant_id: UUID, request: ErasureRequest, after: ListPosition | None
    ) -> AsyncIterator[tuple[list[tuple[MatchedSession, ListPosition]], set[str], ListPosition | None]]:
        """Yield pages of matching sessions, newest first: each with its position, the names to be erased, and the next
        page's position, None after the last one. A name may be in several pages, since its relatives may be."""
        async for positions, next_position in self._matching(tenant_id, _filter(request), after):
            families = await find_families(self._database, tenant_id, list(positions))
            all_names = frozenset().union(*families.values())
            matching_names = await store.matching(self._database, tenant_id, all_names, _filter(request))
            kept = {name for name in positions if not request.forks and not families[name] <= matching_names}
            erasable = {one for name in positions if name not in kept for one in families[name]}
            found = [(MatchedSession(name, at[0], name in kept), at) for name, at in positions.items()]
            yield found, erasable, next_position

    async def _matching(
        self, tenant_id: UUID, filters: SessionFilter, after: ListPosition | None
    ) -> AsyncIterator[tuple[dict[str, ListPosition], ListPosition | None]]:
        """Yield pages of matching sessions, newest first: the position of each by name, and the next page's, if any."""
        next_position = after
        while True:
            rows, next_position = await sessions.page(self._database, tenant_id, PAGE, next_position, filters)
            names = {session_of(row.external_id): row.created_at for row in rows}
            positions = {name: (created_at, session_key(tenant_id, name)) for name, created_at in names.items()}
            if len(rows) == PAGE:  # sessions.page returns a position only with an incomplete page
                next_position = list(positions.values())[-1]
            yield positions, next_position
            if next_position is None:
                return

    async def create(
        self, tenant_id: UUID, request: ErasureRequest, api_key_id: UUID | None, idempotency_key: str | None
    ) -> tuple[ErasureRow, bool]:
        """Start an erasure, or find the one that this idempotency key started; return it and whether it is new.

        Raises InvalidRequest, ErasureCountConflict if it would erase another number of sessions than expected, or
        IdempotencyConflict if the key was used with another request.
        """
        _check(request)
        if idempotency_key is None or await store.find_by_key(self._database, tenant_id, idempotency_key) is None:
            await self._check_expected(tenant_id, request)
        async with self._database.transaction() as tx:
            row, new = await store.add(tx, tenant_id, api_key_id, idempotency_key, request.filter_text, request.forks)
            if new:
                await jobs.enqueue(tx, "erase", row.id, f"{tenant_id} {row.id}")
        if (row.filter_sha256, row.forks) != (store.text_sha256(request.filter_text), request.forks):
            raise IdempotencyConflict.of_key(idempotency_key)
        return await self._add_session_count(row), new

    async def _check_expected(self, tenant_id: UUID, request: ErasureRequest) -> None:
        erasable: set[str] = set()
        async for _, names, _ in self._pages(tenant_id, request, None):  # to the end: an erasure has no limit
            erasable |= names
        if len(erasable) != request.expected and (request.expected is not None or len(erasable) > UNEXPECTED_MAX):
            raise ErasureCountConflict(len(erasable), request.expected)

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
        filters = _filter(_read(row.filter, forks=row.forks), made_before=row.created_at)
        kept, erased = 0, 0
        async for positions, _ in self._matching(tenant_id, filters, None):
            for name in positions:
                number = await self._erase(row, filters, name)
                kept += number is None
                erased += number or 0
        if erased:
            await jobs.count_work(self._database, WorkDone("retention", "erasure", "erased"), erased)
        if await store.finish(self._database, tenant_id, id, kept) is not None:
            structlog.get_logger().info(
                "erasure done", erasure=str(id), tenant=str(tenant_id), erased=erased, kept=kept
            )

    async def _erase(self, row: ErasureRow, filters: SessionFilter, name: str) -> int | None:
        """Erase a session with its forks; return the number of erased sessions, None if it stays."""
        async with self._database.transaction() as tx:
            rows = await deletion.lock_family(tx, row.tenant_id, name, lines=True)
            names = list(dict.fromkeys(map(session_of, rows)))
            matching_names = await store.matching(tx, row.tenant_id, names, filters)
            if name not in matching_names:  # it is gone, replaced by another of this name, or its metadata was changed
                return 0
            if not row.forks and not matching_names.issuperset(names):
                return None
            counts: dict[str, Counter[str]] = {one: Counter() for one in names}
            for one in rows:
                counts[session_of(one)].update(await store.counts(tx, session_ref(row.tenant_id, one)))
            await deletion.delete_locked(tx, row.tenant_id, rows)
            for one, own in counts.items():
                await store.record_erased(tx, session_ref(row.tenant_id, one), row.id, own)
        return len(names)


def _check(request: ErasureRequest) -> None:
    check_metadata(request.metadata)
    check_names_values(request.metadata)


def _filter(request: ErasureRequest, made_before: datetime | None = None) -> SessionFilter:
    until = min((one for one in (request.until, made_before) if one is not None), default=None)
    return SessionFilter(since=request.since, until=until, model=request.model, metadata=request.metadata, exact=True)


def _read(text: str, *, forks: bool) -> ErasureRequest:
    given = json.loads(text)
    moments = {name: parse_time(given[name]) for name in ("since", "until") if name in given}
    return ErasureRequest(given["metadata"], given.get("model"), moments.get("since"), moments.get("until"), forks)
