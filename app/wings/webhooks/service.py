"""Webhooks for compactions, and lists of their deliveries."""

import secrets
from collections.abc import Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

from app.core.errors import Conflict, InvalidRequest, NotFound
from app.store.engine import Database
from app.tenants import Tenants
from app.wings.webhooks import store
from app.wings.webhooks.rules import check_secret, check_url, secret_of
from app.wings.webhooks.store import DeliveryRow, WebhookRow

WEBHOOKS_MAX: Final = 20
"""Most webhooks of a tenant: each adds a row to the transactions that notify it."""
SECRET_BYTES: Final = 32


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
