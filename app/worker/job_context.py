"""The context of a job: its tenant, its log fields, its trace, and its return to the queue."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import timedelta
from typing import Final, Protocol, TypeAlias

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.errors import RetryRequested
from structlog.contextvars import bound_contextvars

from app.core.errors import NotFound, StoreUnavailable
from app.store import jobs, sessions
from app.store.engine import Database, acting_for
from app.store.ids import SessionRef
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
    kind: str,
    database: Database,
    ref: SessionRef,
    ciphers: ContentCiphers | None = None,
    *,
    job: int | None = None,
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
