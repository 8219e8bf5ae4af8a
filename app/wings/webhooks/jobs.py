"""The jobs that deliver webhooks, and the schedules that find lost deliveries and purge old ones."""

from typing import Final
from uuid import UUID

from pgqueuer import PgQueuer
from pgqueuer.models import Job, Schedule

from app.store.engine import Database
from app.wings.webhooks import store
from app.wings.webhooks.service import WebhookSender
from app.worker.job_context import FORGOTTEN_CRON, job_context, returned_to_queue

DELIVERIES_AT_ONCE_MAX: Final = 32
"""Most concurrent deliveries over all workers, so that receivers that do not respond cannot occupy them all."""
FORGOTTEN_SECONDS: Final = 60.0
PURGE_CRON: Final = "23 * * * *"


class Deliveries:
    """The job that delivers a webhook, and the schedules that find lost deliveries and purge old ones."""

    def __init__(self, database: Database, sender: WebhookSender) -> None:
        self._database = database
        self._sender = sender

    async def aclose(self) -> None:
        """Close the HTTP client; the database stays open."""
        await self._sender.aclose()

    def register(self, queue: PgQueuer) -> None:
        """Register the job and the schedules with a worker's queue."""
        database = self._database

        @queue.entrypoint("deliver", concurrency_limit=DELIVERIES_AT_ONCE_MAX)
        async def deliver(job: Job) -> None:
            session_id, id = (UUID(part) for part in (job.payload or b"").decode().split())
            with returned_to_queue():
                tenant_id = await store.tenant_of(database, session_id, id)
                if tenant_id is None:  # deleted with its session or its webhook
                    return
                async with job_context("deliver", database, session_id, tenant_id, job=int(job.id)):
                    await self._sender.send(session_id, id)

        @queue.schedule("find_forgotten_deliveries", FORGOTTEN_CRON)
        async def find(_: Schedule) -> None:
            await store.enqueue_overdue(database, FORGOTTEN_SECONDS)

        @queue.schedule("purge_deliveries", PURGE_CRON)
        async def purge(_: Schedule) -> None:
            await store.purge(database)
