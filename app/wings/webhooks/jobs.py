"""The jobs that deliver webhooks, and the schedules that find lost deliveries and purge old ones."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

import structlog
from pgqueuer import PgQueuer
from pgqueuer.models import Job, Schedule

from app.core.lexicon.times import to_seconds
from app.store import work_counts
from app.store.engine import Database
from app.store.ids import SessionRef
from app.store.work_counts import WorkDone
from app.wings.webhooks import store
from app.wings.webhooks.poster import Poster, PostError
from app.wings.webhooks.rules import DELAYS, next_delay, signature
from app.worker.job_context import FORGOTTEN_CRON, job_context, returned_to_queue

DELIVERIES_AT_ONCE_MAX: Final = 32
"""Most concurrent deliveries over all workers, so that receivers that do not respond cannot occupy them all."""
ERROR_CHARS_MAX: Final = 500
FORGOTTEN_SECONDS: Final = 60.0
PURGE_CRON: Final = "23 * * * *"


class Deliveries:
    """The job that delivers a webhook, and the schedules that find lost deliveries and purge old ones.

    Each delivery is sent at least once, under an id that stays the same.
    """

    def __init__(
        self,
        database: Database,
        poster: Poster,
        private_targets: bool | None = None,
        delays: Sequence[float] = DELAYS,
    ) -> None:
        self._database = database
        self._poster = poster
        self._private_targets = private_targets
        self._delays = delays

    async def aclose(self) -> None:
        """Close the HTTP client; the database stays open."""
        await self._poster.aclose()

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
                async with job_context("deliver", database, SessionRef(session_id, tenant_id), job=int(job.id)):
                    await self.send(session_id, id)

        @queue.schedule("find_forgotten_deliveries", FORGOTTEN_CRON)
        async def find(_: Schedule) -> None:
            await store.enqueue_overdue(database, FORGOTTEN_SECONDS)

        @queue.schedule("purge_deliveries", PURGE_CRON)
        async def purge(_: Schedule) -> None:
            await store.purge(database)

    async def send(self, session_id: UUID, id: UUID) -> None:
        """Attempt a pending delivery, and queue its next attempt if it failed and may be retried."""
        due = await store.find_due(self._database, session_id, id)
        if due is None:
            return
        now = datetime.now(UTC).replace(microsecond=0)
        headers = {
            "webhook-id": str(id),
            "webhook-timestamp": str(int(to_seconds(now))),
            "webhook-signature": signature(due.secret, str(id), now, due.body),
        }
        private = due.private_targets and self._private_targets is not False
        status, retry_after, error = None, None, None
        try:
            answer = await self._poster.post(due.url, headers, due.body, private=private)
            status, retry_after = answer.status, answer.retry_after
            if not 200 <= status < 300:
                error = f"answered {status}"
        except PostError as reason:
            error = str(reason)[:ERROR_CHARS_MAX]
        except Exception as failure:  # any failure counts as an attempt: otherwise attempts would never end
            structlog.get_logger().error("a delivery raised an error", delivery=str(id), exc_info=failure)
            error = f"internal error: {type(failure).__name__}"
        delay = None if error is None else next_delay(due.attempts + 1, status, retry_after, self._delays)
        age = await store.record_attempt(self._database, session_id, id, status=status, error=error, delay=delay)
        if age is not None:
            outcome = "delivered" if error is None else "failed" if delay is None else "retried"
            await work_counts.add(self._database, WorkDone("delivery", "", outcome, age))
