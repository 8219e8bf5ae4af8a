"""Times of last use of keys, stored in the background: no request waits for that or fails because of it."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import Final
from uuid import UUID

import asyncpg
import structlog

from app.core.errors import StoreUnavailable
from app.store import keys
from app.store.engine import Database, acting_for

EVERY_SECONDS: Final = 60.0
"""Interval at which each process stores the use of a key."""
KEYS_REMEMBERED: Final = 10_000
"""Number of keys above which those not used lately are forgotten."""
CLOSE_SECONDS: Final = 2.0


class LastUsed:
    """Collects uses and stores them: one statement at a time, on one connection of the pool."""

    def __init__(self, database: Database, clock: Callable[[], float], today: Callable[[], datetime]) -> None:
        self._database = database
        self._clock = clock
        self._today = today
        self._noted: dict[UUID, float] = {}
        self._tidy_at = KEYS_REMEMBERED
        self._waiting: dict[UUID, dict[UUID, datetime]] = {}
        self._writing: asyncio.Task[None] | None = None

    def note(self, tenant_id: UUID, key_id: UUID) -> None:
        """Note that a tenant's key is being used."""
        now = self._clock()
        noted = self._noted.get(key_id)
        if noted is not None and now - noted < EVERY_SECONDS:
            return
        if len(self._noted) >= self._tidy_at:
            self._noted = {one: at for one, at in self._noted.items() if now - at < EVERY_SECONDS}
            self._tidy_at = max(KEYS_REMEMBERED, 2 * len(self._noted))
        self._noted[key_id] = now
        self._waiting.setdefault(tenant_id, {})[key_id] = self._today()
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write())

    async def aclose(self) -> None:
        """Store the remaining uses, unless that takes too long."""
        if self._writing is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._writing, CLOSE_SECONDS)

    async def _write(self) -> None:
        while self._waiting:
            tenant_id, uses = self._waiting.popitem()
            try:
                with acting_for(tenant_id):
                    await keys.store_last_used(self._database, tenant_id, uses)
            except (StoreUnavailable, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                # These keys are stored when they are used again.
                structlog.get_logger().warning("the use of keys was not written down", error=str(error))
