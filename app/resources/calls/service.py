"""Recorded calls across a tenant's sessions."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

from app.core.errors import InvalidRequest
from app.core.log.segments import is_line
from app.store import calls_search, lines, sessions
from app.store.audit import CallRow
from app.store.calls_search import Filters
from app.store.engine import Database
from app.store.ids import first_id, last_id


@dataclass(frozen=True, slots=True)
class CallConditions:
    """Conditions on calls; None is no condition. `since` is inclusive, `until` exclusive.

    `session`: calls of a line, or of all lines of a session; with `summary` or `evicted_seq`, of its current line.
    `summary`: calls that showed it, of `session` or else of the session it was written for. `evicted_seq`: calls of
    `session` that did not show that event verbatim.
    """

    session: str | None = None
    model: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    summary: UUID | None = None
    evicted_seq: int | None = None
    overflow: bool | None = None
    min_evicted_tokens: int = 0


Place = tuple[datetime, UUID]


class Audit:
    """Searches recorded calls."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def calls(
        self, tenant_id: UUID, asked: CallConditions, *, before: Place | None, limit: int
    ) -> tuple[list[tuple[str, CallRow]], Place | None]:
        """Return up to `limit` calls with their sessions' names, newest first, and the place to continue from.

        A page may have fewer although more follow: it scans at most calls_search.SCAN_MAX calls. Raises InvalidRequest
        for `evicted_seq` without a session.
        """
        if asked.evicted_seq is not None and asked.session is None:
            raise InvalidRequest("evicted_seq needs a session: seqs count within one", field="evicted_seq")
        filters = await self._filters(tenant_id, asked)
        if filters is None:
            return [], None
        found, after = await calls_search.page(self._database, tenant_id, replace(filters, before=before), limit)
        return [(session, call) for session, call in found if session is not None], after

    async def _filters(self, tenant_id: UUID, asked: CallConditions) -> Filters | None:
        """Return the filters for the store; None when no call can match."""
        session_id = None
        if asked.session is not None:
            if asked.summary is None and asked.evicted_seq is None and not is_line(asked.session):
                names = await lines.names(self._database, tenant_id, asked.session)
                return _filters(asked, list(names)) if names else None
            line = (
                None if is_line(asked.session) else await lines.current_line(self._database, tenant_id, asked.session)
            )
            session_id = sessions.session_key(tenant_id, line or asked.session)
        epochs: set[tuple[str, int]] | None = None
        if asked.summary is not None:
            home, found = await calls_search.showing(self._database, tenant_id, asked.summary, session_id)
            if home is None:
                return None
            session_id, epochs = home, set(found)
        if asked.evicted_seq is not None and session_id is not None:
            evicting = set(await calls_search.evicting(self._database, tenant_id, session_id, asked.evicted_seq))
            epochs = evicting if epochs is None else epochs & evicting
        if epochs is not None and not epochs:
            return None
        return _filters(asked, None if session_id is None else [session_id], epochs)


def _filters(
    asked: CallConditions, session_ids: Sequence[UUID] | None, epochs: Collection[tuple[str, int]] | None = None
) -> Filters:
    return Filters(
        session_ids=session_ids,
        model=asked.model,
        since=asked.since,
        until=asked.until,
        overflow=asked.overflow,
        min_evicted_tokens=asked.min_evicted_tokens,
        epochs=None if epochs is None else sorted(epochs),
        newest_id=calls_search.LAST if asked.until is None else last_id(asked.until),
        oldest_id=calls_search.FIRST if asked.since is None else first_id(asked.since),
    )
