"""Compactions that were asked for, and summaries as they are stored, for whoever asks over the API."""

import asyncio
import json
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import asyncpg

from app.core.errors import Conflict, NotFound
from app.services.ids import new_id
from app.store import compactions, sessions, summaries, texts
from app.store.engine import Database

ENDED: Final = ("succeeded", "skipped", "failed")
POLL_SECONDS: Final = 0.05


class CompactionQueries:
    """Asking for compactions, waiting for them, and reading what came of them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def compact(self, tenant_id: UUID, external_id: str, focus: str | None, wait_ms: int) -> Mapping[str, Any]:
        """A new run, as it stands after at most `wait_ms`. Raises NotFound."""
        session = await sessions.get(self._database, tenant_id, external_id)
        id = new_id()
        async with self._database.transaction() as tx:
            await compactions.schedule(tx, session.session_id, tenant_id, id, "requested", focus=focus)
        return await self.ended(session.session_id, id, wait_ms)

    async def ended(self, session_id: UUID, id: UUID, wait_ms: int) -> Mapping[str, Any]:
        """A run when it has ended, or as it is after `wait_ms`. It is looked at every POLL_SECONDS: whoever asks to
        wait for a model has time, and a connection that listens for each of them would cost more."""
        until = time.monotonic() + wait_ms / 1000
        while True:
            row = await compactions.find(self._database, session_id, id)
            if row is None:
                raise NotFound(f"there is no compaction {id}", compaction=str(id))
            left = until - time.monotonic()
            if row["state"] in ENDED or left <= 0:
                return _run(row)
            await asyncio.sleep(min(POLL_SECONDS, left))

    async def run(self, tenant_id: UUID, external_id: str, id: UUID) -> Mapping[str, Any]:
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
    ) -> list[Mapping[str, Any]]:
        """The runs of a session, all or those in one state, the newest first. Raises NotFound."""
        session = await sessions.get(self._database, tenant_id, external_id)
        rows = await compactions.page(self._database, session.session_id, state=state, after=after, limit=limit)
        return [_run(row) for row in rows]

    async def retry(self, tenant_id: UUID, external_id: str, id: UUID) -> Mapping[str, Any]:
        """A run that failed or had nothing to do, scheduled again. Raises NotFound, or Conflict for any other."""
        session = await sessions.get(self._database, tenant_id, external_id)
        async with self._database.transaction() as tx:
            again = await compactions.retry(tx, session.session_id, tenant_id, id)
        run = await self.ended(session.session_id, id, 0)
        if not again:
            raise Conflict(f"compaction {id} is {run['state']}: only a failed or skipped one can be tried again")
        return run

    async def summaries(
        self, tenant_id: UUID, external_id: str, *, live: bool, after: tuple[datetime, UUID] | None, limit: int
    ) -> list[Mapping[str, Any]]:
        """The summaries of a session, as they were made. Raises NotFound."""
        session = await sessions.get(self._database, tenant_id, external_id)
        rows = await summaries.page(self._database, session.session_id, live_only=live, after=after, limit=limit)
        return [_summary(row) for row in rows]

    async def summary(self, tenant_id: UUID, external_id: str, id: UUID) -> Mapping[str, Any]:
        """One summary with its text. Raises NotFound."""
        session = await sessions.get(self._database, tenant_id, external_id)
        row = await summaries.find(self._database, session.session_id, id)
        if row is None:
            raise NotFound(f"session {external_id!r} has no summary {id}", session=external_id, summary=str(id))
        return _summary(row) | {
            "text": row["text"],
            "digest": texts.loads(row["digest"]),
            "usage": json.loads(row["usage"]),
        }


def _run(row: asyncpg.Record) -> Mapping[str, Any]:
    return {**row, "id": str(row["id"]), "summaries": [str(id) for id in row["summaries"]]}


def _summary(row: Mapping[str, Any] | asyncpg.Record) -> dict[str, Any]:
    superseded_by = row["superseded_by"]
    return {
        **row,
        "id": str(row["id"]),
        "sources": [str(id) for id in row["sources"]],
        "superseded_by": None if superseded_by is None else str(superseded_by),
    }
