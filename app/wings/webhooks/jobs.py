"""The jobs that deliver webhooks, and the schedules that find lost deliveries and purge old ones."""

import asyncio
import socket
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Final
from uuid import UUID

import httpx2
import structlog
from pgqueuer import PgQueuer
from pgqueuer.models import Job, Schedule

from app.core.lexicon.times import to_seconds
from app.providers import may_be_secret, redacted, retry_after
from app.store import jobs
from app.store.engine import Database
from app.store.ids import SessionRef
from app.store.jobs import WorkDone
from app.wings.webhooks import store
from app.wings.webhooks.service import DELAYS, is_public, next_delay, signature
from app.worker import FORGOTTEN_CRON, job_context, returned_to_queue

USER_AGENT: Final = "palimpsest-webhooks"


class PostError(Exception):
    """No answer was received; the message says why."""


@dataclass(frozen=True, slots=True)
class WebhookReply:
    """A receiver's status, and the seconds it asked to wait (None: it did not). Its body is not read."""

    status: int
    retry_after: float | None


@cache
def _tls() -> ssl.SSLContext:
    """Return the TLS context of all posters of this process: to read the system's certificates takes 30 ms."""
    return httpx2.create_ssl_context(trust_env=False)


class Poster:
    """An HTTP client for URLs that clients chose, without redirects, proxies from the environment or keep-alive. Each
    request goes to an address that was checked, under the name that it was resolved from."""

    def __init__(self, timeout_seconds: float) -> None:
        self._timeout = timeout_seconds
        self._client = httpx2.AsyncClient(
            timeout=timeout_seconds,
            verify=_tls(),
            follow_redirects=False,
            trust_env=False,
            limits=httpx2.Limits(max_keepalive_connections=0),
            headers={"User-Agent": USER_AGENT},
        )

    async def aclose(self) -> None:
        """Close the client."""
        await self._client.aclose()

    async def post(self, url: str, headers: Mapping[str, str], body: str, *, private: bool) -> WebhookReply:
        """Post a JSON body. Private addresses are called only if `private`. Raises PostError."""
        try:
            target = httpx2.URL(url)
            async with asyncio.timeout(self._timeout):
                for address in (addresses := await self._addresses(target, private=private)):
                    try:
                        return await self._post(target, address, headers, body)
                    except httpx2.ConnectError:
                        if address == addresses[-1]:
                            raise
        except TimeoutError:
            raise PostError(f"no answer within {self._timeout:g} seconds") from None
        except (httpx2.InvalidURL, UnicodeError) as error:
            raise PostError(f"its URL cannot be called: {error}") from None
        except httpx2.HTTPError as error:
            detail = redacted(str(error), [value for name, value in headers.items() if may_be_secret(name, value)])
            raise PostError(f"{type(error).__name__}: {detail}") from None
        raise PostError("its name has no address")

    async def _post(self, target: httpx2.URL, address: str, headers: Mapping[str, str], body: str) -> WebhookReply:
        request = self._client.build_request(
            "POST",
            target.copy_with(host=address),
            content=body.encode(),
            headers={"Content-Type": "application/json", **headers, "Host": target.netloc.decode("ascii")},
            extensions={"sni_hostname": _name(target)} if target.scheme == "https" else {},
        )
        answer = await self._client.send(request, stream=True)
        try:
            return WebhookReply(answer.status_code, retry_after(answer.headers))
        finally:
            await answer.aclose()

    async def _addresses(self, target: httpx2.URL, *, private: bool) -> list[str]:
        """Return the addresses of a URL's host. Raises PostError if one is private and `private` is not set."""
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(_name(target), target.port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise PostError(f"its name cannot be resolved: {error.strerror or error}") from None
        addresses = list(dict.fromkeys(str(info[4][0]) for info in found))
        if not private and not all(map(is_public, addresses)):
            raise PostError("it leads to a private address (PALIMPSEST_WEBHOOK_PRIVATE_TARGETS)")
        return addresses


def _name(target: httpx2.URL) -> str:
    """Return a URL's host as DNS and TLS need it: a name with letters outside ASCII stays encoded."""
    return target.raw_host.decode("ascii")


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
        self, database: Database, poster: Poster, private_targets: bool | None = None, delays: Sequence[float] = DELAYS
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
            await jobs.count_work(self._database, WorkDone("delivery", "", outcome, age))
