"""The schedules that apply each tenant's retention rules, and the jobs that carry out erasures."""

from typing import Final
from uuid import UUID

from pgqueuer import PgQueuer
from pgqueuer.models import Job, Schedule

from app.store.engine import Database, acting_for
from app.wings.retention import store
from app.wings.retention.erasures import Erasures
from app.wings.retention.service import DataRetention
from app.worker import FORGOTTEN_CRON, returned_to_queue

RETENTION_CRON: Final = "17 * * * *"


class RetentionJobs:
    """The schedules that apply each tenant's retention rules, and the jobs that carry out erasures."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def aclose(self) -> None:
        """Release nothing; the database stays open."""

    def register(self, queue: PgQueuer) -> None:
        """Register the job and the schedules with a worker's queue."""
        database = self._database

        @queue.schedule("apply_retention", RETENTION_CRON)
        async def apply(_: Schedule) -> None:
            await apply_all(database)

        @queue.entrypoint("erase")
        async def erase(job: Job) -> None:
            tenant_id, id = (UUID(part) for part in (job.payload or b"").decode().split())
            with returned_to_queue(), acting_for(tenant_id):
                await Erasures(database).work(tenant_id, id)

        @queue.schedule("find_forgotten_erasures", FORGOTTEN_CRON)
        async def find(_: Schedule) -> None:
            await store.enqueue_unfinished(database)


async def apply_all(database: Database) -> None:
    """Erase every tenant's data that is due."""
    for tenant_id in await store.tenants_with_rules(database):
        with acting_for(tenant_id):
            await DataRetention(database).apply(tenant_id)
