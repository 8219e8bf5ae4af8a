"""Compactions that were asked for, and summaries as they are stored, for whoever asks over the API."""

import asyncio
import time
from datetime import datetime
from typing import Final
from uuid import UUID

from app.core.errors import Conflict, NotFound
from app.services.ids import new_id
from app.store import compactions, sessions, summaries
from app.store.compactions import CompactionRow
from app.store.engine import Database
from app.store.summaries import SummaryRow, WholeSummary

ENDED: Final = ("succeeded", "skipped", "failed")
POLL_SECONDS: Final = 0.05


class CompactionQueries:
    """Asking for compactions, waiting for them, and reading what came of them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def compact(self, tenant_id: UUID, external_id: str, focus: str | None, wait_ms: int) -> CompactionRow:
        """A new run, as it stands after at most `wait_ms`. Raises NotFound."""
        session = await sessions.get(self._database, tenant_id, external_id)
        id = new_id()
        async with self._database.transaction() as tx:
            await compactions.schedule(tx, session.session_id, tenant_id, id, "requested", focus=focus)
        return await self.ended(session.session_id, id, wait_ms)

    async def ended(self, session_id: UUID, id: UUID, wait_ms: int) -> CompactionRow:
        """A run when it has ended, or as it is after `wait_ms`. It is looked at every POLL_SECONDS: whoever asks to
        wait for a model has time, and a connection that listens for each of them would cost more."""
        until = time.monotonic() + wait_ms / 1000
        while True:
            run = await compactions.find(self._database, session_id, id)
            if run is None:
                raise NotFound(f"there is no compaction {id}", compaction=str(id))
            left = until - time.monotonic()
            if run.state in ENDED or left <= 0:
                return run
            await asyncio.sleep(min(POLL_SECONDS, left))

    async def run(self, tenant_id: UUID, external_id: str, id: UUID) -> CompactionRow:
        """One run. Raises NotFound."""
        session = await sessions.get(self._database, tenant_id, external_id)
        return await self.ended(session.session_id, id, 0)

    async def runs(
        self,
        tenant_id: UUID,
        external_id: str,
        *,
        state: str | None,
        after: tuple[datetime, UUID] | None,
        limit: int,
    ) -> list[CompactionRow]:
        """The runs of a session, all or those in one state, the newest first. Raises NotFound."""
        session = await sessions.get(self._database, tenant_id, external_id)
        return await compactions.page(self._database, session.session_id, state=state, after=after, limit=limit)

    async def retry(self, tenant_id: UUID, external_id: str, id: UUID) -> CompactionRow:
        """A run that failed or had nothing to do, scheduled again. Raises NotFound, or Conflict for any other."""
        session = await sessions.get(self._database, tenant_id, external_id)
        async with self._database.transaction() as tx:
            again = await compactions.retry(tx, session.session_id, tenant_id, id)
        run = await self.ended(session.session_id, id, 0)
        if not again:
            raise Conflict(f"compaction {id} is {run.state}: only a failed or skipped one can be tried again")
        return run

    async def summaries(
        self, tenant_id: UUID, external_id: str, *, live: bool, after: tuple[datetime, UUID] | None, limit: int
    ) -> list[SummaryRow]:
        """The summaries of a session, as they were made. Raises NotFound."""
        session = await sessions.get(self._database, tenant_id, external_id)
        return await summaries.page(self._database, session.session_id, live_only=live, after=after, limit=limit)

    async def summary(self, tenant_id: UUID, external_id: str, id: UUID) -> WholeSummary:
        """One summary with its text. Raises NotFound."""
        session = await sessions.get(self._database, tenant_id, external_id)
        found = await summaries.find(self._database, session.session_id, id)
        if found is None:
            raise NotFound(f"session {external_id!r} has no summary {id}", session=external_id, summary=str(id))
        return found
