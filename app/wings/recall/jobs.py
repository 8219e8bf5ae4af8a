"""The job that indexes the events that a search left unindexed."""

from uuid import UUID

from pgqueuer import PgQueuer
from pgqueuer.models import Job

from app.core.errors import ContentsErased
from app.store.engine import Database
from app.store.ids import SessionRef
from app.store.texts import ContentCiphers
from app.wings.recall.service import Indexing
from app.worker import job_context, returned_to_queue


class IndexJobs:
    """The job that indexes events of a session."""

    def __init__(self, database: Database, ciphers: ContentCiphers) -> None:
        self._database = database
        self._ciphers = ciphers
        self._indexing = Indexing(database)

    async def aclose(self) -> None:
        """Release nothing; the database stays open."""

    def register(self, queue: PgQueuer) -> None:
        """Register the job with a worker's queue."""

        @queue.entrypoint("index")
        async def index(job: Job) -> None:
            session_id, tenant_id, first, last = (job.payload or b"").decode().split()
            ref = SessionRef(UUID(session_id), UUID(tenant_id))
            try:
                with returned_to_queue():
                    async with job_context("index", self._database, ref, self._ciphers, job=int(job.id)):
                        await self._indexing.index(ref, int(first), int(last))
            except ContentsErased:
                return
