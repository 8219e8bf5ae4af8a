"""Webhooks for compactions, and the sending of their deliveries, whose HTTP client only a worker imports."""

import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final
from uuid import UUID

import structlog

from app.core.errors import Conflict, InvalidRequest, NotFound
from app.core.lexicon.times import to_seconds
from app.services.tenants import Tenants
from app.store import work_counts
from app.store.engine import Database
from app.store.work_counts import WorkDone
from app.wings.webhooks import store
from app.wings.webhooks.rules import DELAYS, check_secret, check_url, next_delay, secret_of, signature
from app.wings.webhooks.store import DeliveryRow, WebhookRow

if TYPE_CHECKING:
    from app.wings.webhooks.poster import Poster

WEBHOOKS_MAX: Final = 20
"""Most webhooks of a tenant: each adds a row to the transactions that notify it."""
SECRET_BYTES: Final = 32
ERROR_CHARS_MAX: Final = 500


class Webhooks:
    """Stores and lists webhooks and their deliveries. `private_targets`: whether private addresses may be called; None:
    only while the server needs no key, since only this machine can reach it then."""

    def __init__(self, database: Database, tenants: Tenants, private_targets: bool | None) -> None:
        self._database = database
        self._tenants = tenants
        self._private_targets = private_targets

    async def put(
        self, tenant_id: UUID, name: str, *, url: str, events: Sequence[str], secret: str | None
    ) -> tuple[WebhookRow, bool, str | None]:
        """Store a webhook; return it, whether it is new, and its secret if one was generated.

        If `secret` is None, an existing webhook keeps its own. Raises InvalidRequest.
        """
        private = self._private_targets
        if private is None:
            private = not await self._tenants.needs_key()
        check_url(url, private=private)
        if secret is not None:
            check_secret(secret)
        fresh = secret_of(secrets.token_bytes(SECRET_BYTES))
        async with self._database.transaction() as tx:
            if await store.count_others(tx, tenant_id, name) >= WEBHOOKS_MAX:
                raise InvalidRequest(f"there are {WEBHOOKS_MAX} webhooks already", field="name")
            row, made = await store.put(
                tx,
                tenant_id,
                name,
                url=url,
                events=list(dict.fromkeys(events)),
                secret=secret,
                fresh_secret=fresh,
                private_targets=private,
            )
        return row, made, fresh if made and secret is None else None

    async def find(self, tenant_id: UUID, name: str) -> WebhookRow:
        """Return one webhook. Raises NotFound."""
        row = await store.find(self._database, tenant_id, name)
        if row is None:
            raise NotFound(f"there is no webhook {name!r}", webhook=name)
        return row

    async def page(self, tenant_id: UUID, after: str, limit: int) -> list[WebhookRow]:
        """Return webhooks after the name `after`, by name."""
        return await store.page(self._database, tenant_id, after, limit)

    async def delete(self, tenant_id: UUID, name: str) -> None:
        """Delete a webhook with its pending deliveries. Raises NotFound."""
        if not await store.delete(self._database, tenant_id, name):
            raise NotFound(f"there is no webhook {name!r}", webhook=name)

    async def deliveries(
        self, tenant_id: UUID, name: str, *, state: str | None, after: tuple[datetime, UUID] | None, limit: int
    ) -> list[DeliveryRow]:
        """Return a webhook's deliveries, all or those in one state, newest first. Raises NotFound."""
        await self.find(tenant_id, name)
        return await store.deliveries(self._database, tenant_id, name, state=state, after=after, limit=limit)

    async def retry(self, tenant_id: UUID, name: str, id: UUID) -> DeliveryRow:
        """Make an undelivered delivery due now, and return it. Raises NotFound or Conflict."""
        async with self._database.transaction() as tx:
            again = await store.retry(tx, tenant_id, name, id)
            row = await store.delivery(tx, tenant_id, name, id)
        if row is None:
            raise NotFound(f"webhook {name!r} has no delivery {id}", webhook=name, delivery=str(id))
        if not again:
            raise Conflict(f"delivery {id} has already been made")
        return row


class WebhookSender:
    """Sends deliveries: at least once each, under an id that stays the same."""

    def __init__(
        self,
        database: Database,
        poster: "Poster",
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

    async def send(self, session_id: UUID, id: UUID) -> None:
        """Attempt a pending delivery, and queue its next attempt if it failed and may be retried."""
        from app.wings.webhooks.poster import PostError

        due = await store.due(self._database, session_id, id)
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
            structlog.get_logger().error("a delivery failed here", delivery=str(id), exc_info=failure)
            error = f"failed here: {type(failure).__name__}"
        delay = None if error is None else next_delay(due.attempts + 1, status, retry_after, self._delays)
        age = await store.record_attempt(self._database, session_id, id, status=status, error=error, delay=delay)
        if age is not None:
            outcome = "delivered" if error is None else "failed" if delay is None else "retried"
            await work_counts.add(self._database, WorkDone("delivery", "", outcome, age))
