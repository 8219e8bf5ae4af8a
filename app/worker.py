"""The worker: pgqueuer on a connection of its own, until it is stopped, and a job's context. Any number may run."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, Protocol, TypeAlias
from uuid import UUID

import asyncpg
import structlog
from pgqueuer import PgQueuer
from pgqueuer.core import buffers
from pgqueuer.errors import RetryRequested
from pgqueuer.models import JOB_STATUS, Job, Schedule, TracebackRecord
from structlog.contextvars import bound_contextvars

from app.core.errors import ContentsErased, NotFound, SessionGone, StoreUnavailable
from app.resources.layers import service as layers
from app.resources.summaries.service import Compaction
from app.resources.summaries.summarizing import SummarizerUnavailable
from app.store import compactions, jobs, sessions, summaries
from app.store.deletion import purge_calls, purge_dead_jobs, purge_idempotency_keys, purge_job_log
from app.store.driver import UNREACHABLE, FindPlacement, connect
from app.store.engine import ROLE, SERVER_SETTINGS, Database, acting_for
from app.store.ids import SessionRef
from app.store.jobs import APPLICATION_NAME
from app.store.texts import ContentCiphers, sealing_with
from app.tracing import tracer

FORGOTTEN_CRON: Final = "* * * * *"
"""Schedule of the search for work whose job was lost."""


FollowUp: TypeAlias = Callable[[SessionRef, int | None], Awaitable[object]]
"""Work after a compaction, within its job: gets the session, and the last seq that was considered."""


class JobGroup(Protocol):
    """Jobs and schedules of a worker."""

    def register(self, queue: PgQueuer) -> None:
        """Add them to the queue of a new connection."""

    async def aclose(self) -> None:
        """Close their connections; the database stays open."""


@contextmanager
def returned_to_queue(retry_seconds: float = 1.0) -> Iterator[None]:
    """Return a job to the queue: at once if its worker stops, for `retry_seconds` later if the database fails."""
    try:
        yield
    except (StoreUnavailable, asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
        raise RetryRequested(timedelta(seconds=retry_seconds), str(error)) from error
    except asyncio.CancelledError:  # a job that ends as cancelled would leave the queue
        raise RetryRequested(timedelta(0), "its worker stopped") from None


@asynccontextmanager
async def job_context(
    kind: str, database: Database, ref: SessionRef, ciphers: ContentCiphers | None = None, *, job: int | None = None
) -> AsyncIterator[None]:
    """Act for a session's tenant in a new trace; `ciphers` make the tenant's encrypted contents readable and writable.

    The trace is linked to the request that queued the job. Raises the errors of ContentCiphers.
    """
    with acting_for(ref.tenant_id), tracer.get().span(kind, "consumer") as span:
        span.set(palimpsest__job__id=job, palimpsest__tenant__id=str(ref.tenant_id))
        session = await _session_name(database, ref)
        span.set(palimpsest__session__name=session)
        fields = {"job": job, "session": session, "trace_id": span.trace_id}
        bound = {name: value for name, value in fields.items() if value is not None}
        with bound_contextvars(**bound):
            try:
                with sealing_with(None if ciphers is None else await ciphers.cipher(ref.tenant_id)):
                    yield
            finally:
                if job is not None and span.is_recording:
                    with suppress(StoreUnavailable):
                        span.link(await jobs.trace_context(database, job))


async def _session_name(database: Database, ref: SessionRef) -> str | None:
    """Return the name of a session; None if it was erased."""
    try:
        return await sessions.name_of(database, ref)
    except NotFound:
        return None


PURGE_CRON: Final = "*/10 * * * *"
SWEEP_CRON: Final = "40 3 * * *"
RECONNECT_SECONDS: Final = 1.0
STEADY_SECONDS: Final = 10.0
"""Seconds for which a connection must last to count as recovery: only after that is another failure logged."""
GRACE_SECONDS: Final = 8.0
"""Seconds for running jobs to finish when the worker stops: less than containers are given to stop."""
POOL_SIZE: Final = 4
DEQUEUE_TIMEOUT: Final = timedelta(seconds=15)
"""Interval at which jobs are looked for without a notification: only those of a worker that has died need it."""
FLUSH_TIMEOUT: Final = timedelta(seconds=5)
"""Interval at which a failed write of finished jobs is tried again."""
BATCH_SIZE: Final = 4
RETRY_SECONDS: Final = 1.0
RETRY_DOUBLINGS_MAX: Final = 8
RETRY_SECONDS_MAX: Final = 3600.0
"""The longest wait that a provider may ask for."""
FORGOTTEN_SECONDS: Final = 60.0
REDO_CRON: Final = "*/5 * * * *"
REDO_AFTER_SECONDS: Final = 300.0
REDO_SESSIONS_MAX: Final = 20


@dataclass
class FinishedJobs(buffers.JobStatusLogBuffer):
    """A buffer of finished jobs that writes each job immediately.

    The library's own looks for finished jobs ten times a second, which took half of an idle worker's CPU, and has no
    setting for it.
    """

    timeout: timedelta = field(default_factory=lambda: FLUSH_TIMEOUT, kw_only=True)

    async def add(self, item: tuple[Job, JOB_STATUS, TracebackRecord | None]) -> None:
        """Add a finished job, and write it."""
        await super().add(item)
        self.schedule_flush()


buffers.JobStatusLogBuffer = FinishedJobs  # type: ignore[misc]  # the queue makes its buffer by this name


@dataclass(frozen=True, slots=True)
class Work:
    """The optional work of a worker: factories that are called with its database, and that database's options.

    A job without a heartbeat for `heartbeat_seconds` goes to another worker.
    """

    compaction: Callable[[Database], Compaction] | None = None
    heartbeat_seconds: float = 30.0
    pooler_url: str | None = None
    find_placement: FindPlacement | None = None
    ciphers: Callable[[Database], ContentCiphers] = lambda _: ContentCiphers()
    jobs: Sequence[Callable[[Database], JobGroup]] = ()
    after_compaction: Sequence[Callable[[Database], FollowUp]] = ()


NO_OPTIONAL_WORK: Final = Work()


async def run(database_url: str, stop: asyncio.Event, work: Work = NO_OPTIONAL_WORK) -> None:
    """Work until `stop` is set; reconnect whenever the database is lost."""
    log = structlog.get_logger()
    database = Database(
        database_url, pool_size=POOL_SIZE, pooler_url=work.pooler_url, find_placement=work.find_placement
    )
    compaction = None if work.compaction is None else work.compaction(database)
    groups = [make(database) for make in work.jobs]
    lost = False

    def mark_recovered() -> None:
        nonlocal lost
        if lost:
            log.warning("worker is connected to the database again")
        lost = False

    try:
        while not stop.is_set():
            try:
                await _work_on_connection(database, database_url, stop, work, compaction, groups, mark_recovered)
            except (*UNREACHABLE, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                if not lost:
                    log.warning("worker lost the database; retrying until it is back", error=str(error))
                lost = True
            except Exception:  # no failure may end the work for good
                log.exception("worker failed; starting again")
            if not stop.is_set():
                await _wait(stop, RECONNECT_SECONDS)
    finally:
        if compaction is not None:
            await compaction.aclose()
        for group in groups:
            await group.aclose()
        await database.close()


async def _work_on_connection(
    database: Database,
    database_url: str,
    stop: asyncio.Event,
    work: Work,
    compaction: Compaction | None,
    groups: Sequence[JobGroup],
    mark_recovered: Callable[[], None],
) -> None:
    """Work on one connection until it is lost or `stop` is set."""
    settings = {**SERVER_SETTINGS, "application_name": APPLICATION_NAME, "role": ROLE}
    connection = await connect(database_url, server_settings=settings)
    steady = asyncio.get_running_loop().call_later(STEADY_SECONDS, mark_recovered)
    try:
        queue = PgQueuer.from_asyncpg_connection(connection)

        _register_purges(queue, database)
        if compaction is not None:
            _register_compaction(queue, database, compaction, work)
        for group in groups:
            group.register(queue)

        stopping = asyncio.create_task(stop.wait())
        lost = asyncio.Event()
        connection.add_termination_listener(lambda _: lost.set())
        losing = asyncio.create_task(lost.wait())
        running = asyncio.create_task(
            queue.run(
                dequeue_timeout=DEQUEUE_TIMEOUT,
                batch_size=BATCH_SIZE,
                heartbeat_timeout=timedelta(seconds=work.heartbeat_seconds),
            )
        )
        try:
            await asyncio.wait({stopping, losing, running}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            queue.shutdown.set()
            stopping.cancel()
            losing.cancel()
            await asyncio.wait({running}, timeout=GRACE_SECONDS)
            running.cancel()  # an interrupted job returns to the queue, for another worker
            # An error counts only if the queue ended in time and its connection lives.
            ignores_errors = not running.done() or lost.is_set()
            await asyncio.gather(running, return_exceptions=ignores_errors)
    finally:
        steady.cancel()
        await connection.close()


def _register_purges(queue: PgQueuer, database: Database) -> None:
    """Register the schedules that delete outdated rows."""

    def schedule(name: str, cron: str, clean: Callable[[Database], Awaitable[object]]) -> None:
        @queue.schedule(name, cron)
        async def run(_: Schedule) -> None:
            await clean(database)

    schedule("purge_idempotency_records", PURGE_CRON, purge_idempotency_keys)
    schedule("purge_expired_calls", PURGE_CRON, purge_calls)
    schedule("purge_job_log", PURGE_CRON, purge_job_log)
    schedule("sweep_layers", SWEEP_CRON, layers.sweep)
    schedule("purge_given_up_jobs", SWEEP_CRON, purge_dead_jobs)


def _register_compaction(queue: PgQueuer, database: Database, compaction: Compaction, work: Work) -> None:
    """Register the jobs that write summaries, and the schedules that find lost jobs and degraded summaries."""
    ciphers = work.ciphers(database)
    follow_ups = [make(database) for make in work.after_compaction]

    @queue.entrypoint("compact")
    async def compact(job: Job) -> None:
        ref = SessionRef(*map(UUID, (job.payload or b"").decode().split()))
        try:
            with returned_to_queue(_delay(job)):
                async with job_context("compact", database, ref, ciphers, job=int(job.id)):
                    head = await compaction.run_job(ref, int(job.id))
                    for follow_up in follow_ups:
                        await follow_up(ref, head)
        except (ContentsErased, SessionGone):
            return
        except SummarizerUnavailable as error:
            raise RetryRequested(timedelta(seconds=_delay(job, error.delay)), error.detail) from error

    @queue.schedule("find_forgotten_compactions", FORGOTTEN_CRON)
    async def find(_: Schedule) -> None:
        await compactions.enqueue_overdue(database, FORGOTTEN_SECONDS)

    @queue.schedule("redo_degraded_summaries", REDO_CRON)
    async def redo(_: Schedule) -> None:
        await rewrite_degraded(database, compaction, ciphers)


async def rewrite_degraded(database: Database, compaction: Compaction, ciphers: ContentCiphers | None = None) -> None:
    """Rewrite one degraded summary in each of up to REDO_SESSIONS_MAX sessions; stop once a model is unavailable."""
    for ref in await summaries.degraded(database, REDO_AFTER_SECONDS, REDO_SESSIONS_MAX):
        with suppress(ContentsErased, SessionGone):
            async with job_context("redo", database, ref, ciphers):
                try:
                    await compaction.rewrite_degraded(ref)
                except SummarizerUnavailable:
                    return  # usually for all sessions; the next run takes them in another order


def _delay(job: Job, least: float = 0.0) -> float:
    """Return the seconds until a job is retried: doubled with each attempt, at least `least` (an hour at most)."""
    doubled: float = RETRY_SECONDS * 2 ** min(job.attempts, RETRY_DOUBLINGS_MAX)
    return max(min(least, RETRY_SECONDS_MAX), doubled)


async def _wait(stop: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return
