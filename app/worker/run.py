"""The worker process: pgqueuer on a connection of its own, until told to stop. Any number may run side by side."""

import asyncio
from datetime import timedelta
from typing import Final

import asyncpg
import structlog
from pgqueuer import PgQueuer
from pgqueuer.models import Schedule

from app.store import dsn
from app.store.engine import Database
from app.store.retention import purge_appends

PURGE_CRON: Final = "*/10 * * * *"
RECONNECT_SECONDS: Final = 1.0
POOL_SIZE: Final = 2
APPLICATION_NAME: Final = "palimpsest worker"
DEQUEUE_TIMEOUT: Final = timedelta(seconds=5)


async def run(database_url: str, stop: asyncio.Event) -> None:
    """Work until `stop` is set; a lost database is waited for."""
    log = structlog.get_logger()
    database = Database(database_url, pool_size=POOL_SIZE)
    try:
        while not stop.is_set():
            try:
                await _session(database, database_url, stop)
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                log.warning("worker lost the database", error=str(error))
            except Exception:  # no failure may end the work for good
                log.exception("worker failed; starting again")
            if not stop.is_set():
                await _wait(stop, RECONNECT_SECONDS)
    finally:
        await database.close()


async def _session(database: Database, database_url: str, stop: asyncio.Event) -> None:
    """One connection's worth of work."""
    connection = await asyncpg.connect(
        dsn.for_asyncpg(database_url), server_settings={"application_name": APPLICATION_NAME}
    )
    try:
        queue = PgQueuer.from_asyncpg_connection(connection)

        @queue.schedule("purge_idempotency_records", PURGE_CRON)
        async def purge(_: Schedule) -> None:
            await purge_appends(database)

        stopping = asyncio.create_task(stop.wait())
        lost = asyncio.Event()
        connection.add_termination_listener(lambda _: lost.set())
        losing = asyncio.create_task(lost.wait())
        running = asyncio.create_task(queue.run(dequeue_timeout=DEQUEUE_TIMEOUT))
        try:
            await asyncio.wait({stopping, losing, running}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            queue.shutdown.set()
            stopping.cancel()
            losing.cancel()
            await asyncio.gather(running, return_exceptions=lost.is_set())
    finally:
        await connection.close()


async def _wait(stop: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return
