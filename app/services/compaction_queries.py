"""Requests for compactions over the API, and reads of their runs and of summaries."""

import asyncio
import time
from datetime import datetime
from typing import Final
from uuid import UUID

from app.core.errors import Conflict, NotFound
from app.services.ids import new_id
from app.store import compactions, sessions, summaries
from app.store.compactions import REQUESTED, CompactionRow
from app.store.engine import Database
from app.store.summaries import SummaryRow, WholeSummary

ENDED: Final = ("succeeded", "skipped", "failed")
POLL_SECONDS: Final = 0.05


class CompactionQueries:
    """Requests compactions over the API, and reads their runs and summaries."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def compact(self, tenant_id: UUID, external_id: str, focus: str | None, wait_ms: int) -> CompactionRow:
        """Schedule a run and return it when it has ended, or after `wait_ms`. Raises NotFound."""
        session = await sessions.get(self._database, tenant_id, external_id)
        id = new_id()
        async with self._database.transaction() as tx:
            await compactions.schedule(tx, session.session_id, tenant_id, id, REQUESTED, focus=focus)
        return await self.wait_for(session.session_id, id, wait_ms)

    async def wait_for(self, session_id: UUID, id: UUID, wait_ms: int) -> CompactionRow:
        """Return a run when it has ended, or its state after `wait_ms`.

        It is polled every POLL_SECONDS: a summary takes seconds, and a listening connection per request would cost
        more.
        """
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
        """Return one run. Raises NotFound."""
        session = await sessions.get(self._database, tenant_id, external_id)
        return await self.wait_for(session.session_id, id, 0)

    async def runs(
        self,
        tenant_id: UUID,
        external_id: str,
        *,
        state: str | None,
        after: tuple[datetime, UUID] | None,
        limit: int,
    ) -> list[CompactionRow]:
        """Return the runs of a session, all or those in one state, newest first. Raises NotFound."""
        session = await sessions.get(self._database, tenant_id, external_id)
        return await compactions.page(self._database, session.session_id, state=state, after=after, limit=limit)

    async def retry(self, tenant_id: UUID, external_id: str, id: UUID) -> CompactionRow:
        """Schedule a failed or skipped run again and return it. Raises NotFound, or Conflict in another state."""
        session = await sessions.get(self._database, tenant_id, external_id)
        async with self._database.transaction() as tx:
            again = await compactions.retry(tx, session.session_id, tenant_id, id)
        run = await self.wait_for(session.session_id, id, 0)
        if not again:
            raise Conflict(f"compaction {id} is {run.state}: only a failed or skipped one can be retried")
        return run

    async def summaries(
        self, tenant_id: UUID, external_id: str, *, live: bool, after: tuple[datetime, UUID] | None, limit: int
    ) -> list[SummaryRow]:
        """Return the summaries of a session in the order of their creation. Raises NotFound."""
        session = await sessions.get(self._database, tenant_id, external_id)
        return await summaries.page(self._database, session.session_id, live_only=live, after=after, limit=limit)

    async def summary(self, tenant_id: UUID, external_id: str, id: UUID) -> WholeSummary:
        """Return one summary with its text. Raises NotFound."""
        session = await sessions.get(self._database, tenant_id, external_id)
        found = await summaries.find(self._database, session.session_id, id)
        if found is None:
            raise NotFound(f"session {external_id!r} has no summary {id}", session=external_id, summary=str(id))
        return found
