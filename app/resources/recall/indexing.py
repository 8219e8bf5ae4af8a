"""The search index of sessions, extended by a worker ahead of time, or before a search that needs it."""

import asyncio
from collections.abc import Sequence
from typing import Final
from uuid import UUID
from weakref import WeakValueDictionary

from app.core.log.event import Event
from app.core.recall.search import IndexEntry, entry
from app.store import search
from app.store.engine import Database

BATCH_EVENTS: Final = 200
BATCH_TOKENS: Final = 50_000
"""Most events and tokens indexed in one transaction, which bounds how long a redaction waits."""


class Indexing:
    """Indexes sessions for search. Concurrent requests for one session index it once."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._locks: WeakValueDictionary[UUID, asyncio.Lock] = WeakValueDictionary()

    async def index_to(self, session_id: UUID, tenant_id: UUID, head: int | None = None) -> bool:
        """Index a session up to `head` (None: its end); return False if there is no such session."""
        if head is not None and await search.indexed(self._database, session_id) >= head:
            return True
        lock = self._locks.setdefault(session_id, asyncio.Lock())
        async with lock:  # only one of the waiting tasks holds a connection
            while True:
                at = await self._batch(session_id, tenant_id)
                if at is None:
                    return False
                if at == 0 or (head is not None and at >= head):
                    return True

    async def _batch(self, session_id: UUID, tenant_id: UUID) -> int | None:
        """Index one batch; return its last seq, 0 if nothing is left, None if there is no such session."""
        async with self._database.transaction() as tx:
            indexed_to = await search.lock(tx, session_id, tenant_id)
            if indexed_to is None:
                return None
            events = await search.unindexed(tx, session_id, indexed_to, BATCH_EVENTS, BATCH_TOKENS)
            if not events:
                return 0
            entries = await asyncio.to_thread(_entries, events)
            await search.add(tx, session_id, tenant_id, entries, events[-1].seq)
        return events[-1].seq


def _entries(events: Sequence[Event]) -> list[IndexEntry]:
    return [found for found in map(entry, events) if found is not None]
