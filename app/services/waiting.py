"""A waiting list for each session: whoever waits for its lock waits here first, and holds no connection meanwhile."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from uuid import UUID

from app.core.errors import StoreUnavailable

WAIT_SECONDS: Final = 30.0
WAITING_MAX: Final = 256
"""More do not wait for one session: they are told at once to come back."""


class WaitingLists:
    """Within this process one at a time is let through for each session, in the order of arrival.

    The lock in the database remains what is relied on; this keeps those who wait for it from taking all connections.
    """

    def __init__(self) -> None:
        self._locks: dict[UUID, asyncio.Lock] = {}
        self._waiting: dict[UUID, int] = {}

    @asynccontextmanager
    async def through(self, session_id: UUID) -> AsyncIterator[None]:
        """Raises StoreUnavailable for whoever finds too many waiting, or has waited too long."""
        waiting = self._waiting.get(session_id, 0)
        if waiting >= WAITING_MAX:
            raise StoreUnavailable(f"{waiting} requests wait for this session already")
        lock = self._locks.setdefault(session_id, asyncio.Lock())
        self._waiting[session_id] = waiting + 1
        try:
            try:
                await (asyncio.wait_for(lock.acquire(), WAIT_SECONDS) if waiting else lock.acquire())
            except TimeoutError:
                raise StoreUnavailable("other requests hold this session for too long") from None
            try:
                yield
            finally:
                lock.release()
        finally:
            self._waiting[session_id] -= 1
            if not self._waiting[session_id]:
                del self._waiting[session_id], self._locks[session_id]
