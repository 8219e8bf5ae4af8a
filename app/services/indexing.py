"""The indexing of sessions for search: by a worker ahead of time, or before a search that needs it."""

import asyncio
from collections.abc import Sequence
from typing import Final
from uuid import UUID
from weakref import WeakValueDictionary

from app.core.log.event import Event
from app.core.recall.search import IndexEntry, entry
from app.services.newest_events import HeldEvents
from app.store import search
from app.store.engine import Database

BATCH_EVENTS: Final = 200
BATCH_TOKENS: Final = 50_000
"""The most that one transaction indexes, which bounds how long a redaction waits."""


class Indexing:
    """The indexing use case. Concurrent requests for one session index it once."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._locks: WeakValueDictionary[UUID, asyncio.Lock] = WeakValueDictionary()

    async def reach(
        self, session_id: UUID, tenant_id: UUID, head: int | None = None, held: HeldEvents | None = None
    ) -> bool:
        """Index a session up to `head` (None: its end); return False if there is no such session.

        Events that are among those `held` are not read again.
        """
        if head is not None and await search.indexed(self._database, session_id) >= head:
            return True
        lock = self._locks.setdefault(session_id, asyncio.Lock())
        async with lock:  # of all tasks that wait here, only one holds a connection
            while True:
                at = await self._batch(session_id, tenant_id, held)
                if at is None:
                    return False
                if at == 0 or (head is not None and at >= head):
                    return True

    async def _batch(self, session_id: UUID, tenant_id: UUID, held: HeldEvents | None) -> int | None:
        """Index one batch; return its last seq, 0 if nothing is left, None if there is no such session."""
        async with self._database.transaction() as tx:
            indexed_to = await search.lock(tx, session_id, tenant_id)
            if indexed_to is None:
                return None
            events = _behind(held, indexed_to)
            if not events or held is None or held.stands[:2] != await search.stands(tx, session_id):
                events = await search.unindexed(tx, session_id, indexed_to, BATCH_EVENTS, BATCH_TOKENS)
            if not events:
                return 0
            entries = await asyncio.to_thread(_entries, events)
            await search.add(tx, session_id, tenant_id, entries, events[-1].seq)
        return events[-1].seq


def _behind(held: HeldEvents | None, indexed_to: int) -> Sequence[Event]:
    """The next batch of the held events; none where the first of them may be missing, or may be an ancestor's."""
    if held is None or not indexed_to or held.events[0].seq > indexed_to + 1:
        return ()
    events = held.events[indexed_to + 1 - held.events[0].seq :][:BATCH_EVENTS]
    begins = [one.cum_tokens - one.tokens for one in events]
    return [one for one, at in zip(events, begins, strict=True) if at < begins[0] + BATCH_TOKENS]


def _entries(events: Sequence[Event]) -> list[IndexEntry]:
    return [found for found in map(entry, events) if found is not None]
