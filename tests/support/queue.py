"""A wait until the worker has no compaction and no indexing left, by notifications of its queue."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import asyncpg

from app.store.dsn import for_asyncpg
from app.store.engine import Database

WORKING_SECONDS: Final = 120
"""More seconds than a worker needs for any job of the tests."""


@dataclass(frozen=True)
class WorkerQueue:
    """A worker's queue; calling it waits until no job of a session is left."""

    connection: "asyncpg.Connection[asyncpg.Record]"
    changed: asyncio.Event

    async def __call__(self) -> None:
        """Wait until no compaction and no indexing is queued or running."""
        async with asyncio.timeout(WORKING_SECONDS):
            while True:
                self.changed.clear()
                if not await self.connection.fetch("SELECT FROM pgqueuer WHERE entrypoint IN ('compact', 'index')"):
                    return
                await self.changed.wait()


@asynccontextmanager
async def worker_queue(database_url: str) -> AsyncIterator[WorkerQueue]:
    """Yield the queue of a database."""
    async with _listening(await asyncpg.connect(for_asyncpg(database_url))) as found:
        yield found


async def wait_until_idle(database: Database) -> None:
    """Wait until no compaction and no indexing is queued or running."""
    async with _listening(await database.open_connection("idle")) as done:
        await done()


@asynccontextmanager
async def _listening(connection: "asyncpg.Connection[asyncpg.Record]") -> AsyncIterator[WorkerQueue]:
    changed = asyncio.Event()
    try:
        await connection.add_listener("ch_pgqueuer", lambda *_: changed.set())
        yield WorkerQueue(connection, changed)
    finally:
        await connection.close()
