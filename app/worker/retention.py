"""The schedules that apply each tenant's retention rules, and the jobs that carry out erasures."""

import asyncio
from datetime import timedelta
from typing import Final
from uuid import UUID

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.errors import RetryRequested
from pgqueuer.models import Job, Schedule

from app.core.errors import StoreUnavailable
from app.services.erasures import Erasures
from app.services.retention import Retaining
from app.store import erasures, retention
from app.store.engine import Database, acting_for

RETENTION_CRON: Final = "17 * * * *"
FORGOTTEN_CRON: Final = "* * * * *"
STORE_RETRY_SECONDS: Final = 1.0


def register(queue: PgQueuer, database: Database) -> None:
    """Register the job and the schedules with a worker's queue."""

    @queue.schedule("apply_retention", RETENTION_CRON)
    async def apply(_: Schedule) -> None:
        await apply_all(database)

    @queue.entrypoint("erase")
    async def erase(job: Job) -> None:
        tenant_id, id = (UUID(part) for part in (job.payload or b"").decode().split())
        try:
            with acting_for(tenant_id):
                await Erasures(database).work(tenant_id, id)
        except (StoreUnavailable, asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
            raise RetryRequested(timedelta(seconds=STORE_RETRY_SECONDS), str(error)) from error
        except asyncio.CancelledError:  # the worker stops: a job that ends as cancelled would leave the queue
            raise RetryRequested(timedelta(0), "its worker stopped") from None

    @queue.schedule("find_forgotten_erasures", FORGOTTEN_CRON)
    async def find(_: Schedule) -> None:
        await erasures.wake_forgotten(database)


async def apply_all(database: Database) -> None:
    """Erase every tenant's data that is due."""
    for tenant_id in await retention.ruled(database):
        with acting_for(tenant_id):
            await Retaining(database).apply(tenant_id)
