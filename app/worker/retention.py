"""The schedules that apply each tenant's retention rules, and the jobs that carry out erasures."""

from typing import Final
from uuid import UUID

from pgqueuer import PgQueuer
from pgqueuer.models import Job, Schedule

from app.services.erasures import Erasures
from app.services.retention import RetentionRules
from app.store import erasures, retention
from app.store.engine import Database, acting_for
from app.worker.job_context import FORGOTTEN_CRON, returned_to_queue

RETENTION_CRON: Final = "17 * * * *"


def register(queue: PgQueuer, database: Database) -> None:
    """Register the job and the schedules with a worker's queue."""

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
        await erasures.enqueue_unfinished(database)


async def apply_all(database: Database) -> None:
    """Erase every tenant's data that is due."""
    for tenant_id in await retention.tenants_with_rules(database):
        with acting_for(tenant_id):
            await RetentionRules(database).apply(tenant_id)
