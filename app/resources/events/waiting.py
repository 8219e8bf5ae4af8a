"""Waiting lists for sessions: a task waits here for a session's lock first, without holding a connection."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from uuid import UUID

from app.core.errors import StoreUnavailable

WAIT_SECONDS: Final = 30.0
WAITING_MAX: Final = 256
"""Most tasks that wait for one session; further ones are refused."""


class WaitingLists:
    """Lets one task of this process through at a time for each session, in the order of arrival.

    Correctness relies on the lock in the database; this list keeps waiting tasks from holding all connections.
    """

    def __init__(self) -> None:
        self._locks: dict[UUID, asyncio.Lock] = {}
        self._waiting: dict[UUID, int] = {}

    @asynccontextmanager
    async def turn(self, session_id: UUID) -> AsyncIterator[None]:
        """Wait for the session's turn, and hold it while the block lasts.

        Raises StoreUnavailable if too many tasks wait already, or after WAIT_SECONDS.
        """
        waiting = self._waiting.get(session_id, 0)
        if waiting >= WAITING_MAX:
            raise StoreUnavailable(f"{waiting} requests wait for this session already")
        lock = self._locks.setdefault(session_id, asyncio.Lock())
        self._waiting[session_id] = waiting + 1
        try:
            try:
                await (asyncio.wait_for(lock.acquire(), WAIT_SECONDS) if waiting else lock.acquire())
            except TimeoutError:
                raise StoreUnavailable("other requests have held this session for too long") from None
            try:
                yield
            finally:
                lock.release()
        finally:
            self._waiting[session_id] -= 1
            if not self._waiting[session_id]:
                del self._waiting[session_id], self._locks[session_id]
