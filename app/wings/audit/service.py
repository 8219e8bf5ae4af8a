"""Recorded calls: listed, searched and explained."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Self
from uuid import UUID

from app.core.audit.replay_call import NO_COUNT
from app.core.errors import InvalidRequest
from app.core.log.events import Json
from app.core.log.segments import is_line
from app.core.plan.state.frontier import Frontier
from app.core.plan.state.projection import project
from app.core.record.evictions import disposition_runs, dispositions
from app.resources.contexts.recordings import Recordings
from app.resources.policies.service import Policies
from app.store import audit, event_log, lines, sessions
from app.store.audit import CallRow, StoredEpoch
from app.store.engine import Database
from app.store.event_log import SessionLog
from app.store.ids import first_id, last_id
from app.wings.audit import store
from app.wings.audit.store import Filters


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


@dataclass(frozen=True, slots=True)
class ExplainedCall:
    """A call, the epoch it was rendered from, and the disposition of every event up to its head, as runs.

    `redacted_since` are the seqs up to its head that were redacted later.
    """

    call: CallRow
    epoch: StoredEpoch
    dispositions: Sequence[Mapping[str, Json]]
    redacted_since: tuple[int, ...]


class Audit:
    """Lists, searches and explains recorded calls."""

    def __init__(self, database: Database, policies: Policies, recordings: Recordings) -> None:
        self._database = database
        self._policies = policies
        self._recordings = recordings

    def on(self, database: Database) -> Self:
        """Return the service on another database; policies are read from its own."""
        return type(self)(database, self._policies, self._recordings.on(database))

    async def page(
        self, tenant_id: UUID, external_id: str, *, view: str | None, before: UUID | None, limit: int
    ) -> list[tuple[str, CallRow]]:
        """Return the calls of a line, or of all lines of a session, newest first, each with the name of its line's row.

        Raises NotFound for an unknown session.
        """
        names = {sessions.session_key(tenant_id, external_id): external_id}
        if not is_line(external_id):
            names = await lines.names(self._database, tenant_id, external_id)
        calls = await audit.page(self._database, names, tenant_id, view=view, before=before, limit=limit)
        if not calls:
            await sessions.get(self._database, tenant_id, external_id)
        return [(names[session_id], call) for session_id, call in calls]

    async def explain(self, tenant_id: UUID, external_id: str, call_id: UUID) -> ExplainedCall:
        """Return a call with its epoch and the disposition of every event up to its head. Raises NotFound."""
        call = await self._recordings.find(tenant_id, external_id, call_id)
        session_id = sessions.session_key(tenant_id, external_id)
        epoch = await self._recordings.epoch(session_id, call)
        fates = await self._dispositions(tenant_id, session_id, call, epoch.frontier)
        later = (await audit.erased_seqs(self._database, session_id))[call.manifest.redactions :]
        runs = disposition_runs(fates, epoch.frontier.folds)
        return ExplainedCall(call, epoch, runs, tuple(seq for seq in later if seq <= call.head))

    async def _dispositions(self, tenant_id: UUID, session_id: UUID, call: CallRow, state: Frontier) -> dict[int, str]:
        """Return the disposition of every event up to the call's head, by seq (I4)."""
        policy = await self._policies.get(tenant_id, call.policy)
        events = await event_log.events_without_bodies(self._database, SessionLog(session_id), call.head)
        erased = (await audit.erased_seqs(self._database, session_id))[: call.manifest.redactions]
        return dispositions(events, project(events, state, NO_COUNT, turn=0, shows=policy.shows), state, erased)

    async def calls(
        self, tenant_id: UUID, asked: CallConditions, *, before: Place | None, limit: int
    ) -> tuple[list[tuple[str, CallRow]], Place | None]:
        """Return up to `limit` calls with their sessions' names, newest first, and the place to continue from.

        A page may have fewer although more follow: it scans at most store.SCAN_MAX calls. Raises InvalidRequest
        for `evicted_seq` without a session.
        """
        if asked.evicted_seq is not None and asked.session is None:
            raise InvalidRequest("evicted_seq needs a session: seqs count within one", field="evicted_seq")
        filters = await self._filters(tenant_id, asked)
        if filters is None:
            return [], None
        found, after = await store.page(self._database, tenant_id, replace(filters, before=before), limit)
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
            home, found = await store.showing(self._database, tenant_id, asked.summary, session_id)
            if home is None:
                return None
            session_id, epochs = home, set(found)
        if asked.evicted_seq is not None and session_id is not None:
            evicting = set(await store.evicting(self._database, tenant_id, session_id, asked.evicted_seq))
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
        newest_id=store.LAST if asked.until is None else last_id(asked.until),
        oldest_id=store.FIRST if asked.since is None else first_id(asked.since),
    )
