"""Webhooks for compactions: rules for their secrets, addresses and retries, and lists of their deliveries."""

import base64
import binascii
import re
import secrets
from collections.abc import Sequence
from datetime import datetime
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, Literal
from urllib.parse import urlsplit
from uuid import UUID

from standardwebhooks import Webhook

from app.core.errors import Conflict, InvalidRequest, NotFound
from app.store.engine import Database
from app.tenants import Tenants
from app.wings.webhooks import store
from app.wings.webhooks.store import DeliveryRow, WebhookRow

WebhookEvent = Literal["compaction.scheduled", "compaction.started", "compaction.finished", "compaction.failed"]
URL_CHARS_MAX: Final = 2048
SECRET_PREFIX: Final = "whsec_"  # noqa: S105  # the prefix that the specification gives secrets, not a secret
SECRET_LIMITS: Final = (24, 64)
DELAYS: Final[tuple[float, ...]] = (5.0, 30.0, 120.0, 600.0, 1_800.0, 7_200.0, 18_000.0, 36_000.0)
"""Seconds between attempts: nine attempts in about 18 hours."""
GONE: Final = 410
HOST_CHARS_MAX: Final = 253
_LABEL: Final = re.compile(r"[A-Za-z0-9_-]{1,63}")
_NAT64: Final = IPv6Network("64:ff9b::/96")
_SPECIAL: Final = tuple(
    map(
        ip_network,
        (
            "168.63.129.16/32",  # Azure's own services, reachable from its machines
            "192.0.0.0/24",  # IETF protocol assignments, among them the metadata service of Oracle's cloud
            "192.88.99.0/24",  # relays of 6to4, deprecated
            "::/96",  # IPv4-compatible, deprecated: embeds any IPv4 address
            "::ffff:0:0:0/96",  # IPv4-translated: likewise
            "64:ff9b:1::/48",  # NAT64 within a local network
            "100:0:0:1::/64",  # dummy prefix
            "3fff::/20",  # documentation
            "5f00::/16",  # segment routing
            "fec0::/10",  # site-local, deprecated
        ),
    )
)
"""Networks that are not publicly reachable, although `is_global` is true for some in some versions of Python."""


def secret_of(raw: bytes) -> str:
    """Return the secret in its written form: the prefix and the bytes in base64."""
    return SECRET_PREFIX + base64.b64encode(raw).decode()


def check_secret(secret: str) -> None:
    """Raise InvalidRequest unless the secret has the specification's form and length."""
    least, most = SECRET_LIMITS
    if not secret.startswith(SECRET_PREFIX) or not least <= len(_key(secret)) <= most:
        raise InvalidRequest(f"secret must be {SECRET_PREFIX} and {least} to {most} bytes in base64", field="secret")


def signature(secret: str, id: str, sent_at: datetime, body: str) -> str:
    """Return the value of the header `webhook-signature` for the message `id`, sent at `sent_at`."""
    return Webhook(secret).sign(id, sent_at, body)


def _key(secret: str) -> bytes:
    try:
        return base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        return b""


def check_url(url: str, *, private: bool) -> None:
    """Raise InvalidRequest for a URL that cannot be called or that, unless `private`, names a private address.

    The addresses that a host name resolves to may change, so they are checked at each delivery.
    """
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        _ = parts.port
        ascii_only = url.isascii() and url.isprintable() and " " not in url
    except ValueError:
        raise _bad_url("is no URL") from None
    if parts.scheme not in ("http", "https") or not host or not ascii_only or len(url) > URL_CHARS_MAX:
        raise _bad_url(f"must be an http or https URL of ASCII characters, at most {URL_CHARS_MAX} of them")
    if not _is_valid_host(host, bracketed="[" in parts.netloc):
        raise _bad_url("must name a host by an address or by labels of 1 to 63 characters")
    if parts.username is not None or parts.password is not None or bool(parts.fragment):
        raise _bad_url("must have neither credentials nor a fragment")
    if not private and (host == "localhost" or host.endswith(".localhost") or _is_private_address(host)):
        raise _bad_url("must not name this machine or a private address (PALIMPSEST_WEBHOOK_PRIVATE_TARGETS)")


def _is_valid_host(host: str, *, bracketed: bool) -> bool:
    if bracketed:
        try:
            return isinstance(ip_address(host), IPv6Address)
        except ValueError:
            return False
    labels = host.removesuffix(".").split(".")
    return len(host) <= HOST_CHARS_MAX and all(map(_LABEL.fullmatch, labels))


def _is_private_address(host: str) -> bool:
    try:
        return not is_public(host)
    except ValueError:
        return False


def _bad_url(why: str) -> InvalidRequest:
    return InvalidRequest(f"url {why}", field="url")


def is_public(address: str) -> bool:
    """Return whether an IP address is public; an IPv6 address that embeds an IPv4 address is judged by that one.

    Raises ValueError for a text that is not an IP address.
    """
    ip = ip_address(address)
    if any(ip in network for network in _SPECIAL):
        return False
    if isinstance(ip, IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour
        if inner is None and ip in _NAT64:
            inner = IPv4Address(int(ip) & 0xFFFF_FFFF)
        if inner is not None:
            return is_public(str(inner))
    return ip.is_global and not ip.is_multicast


def next_delay(
    attempts: int, status: int | None, retry_after: float | None, delays: Sequence[float] = DELAYS
) -> float | None:
    """Return the seconds until a delivery is tried again after `attempts` failures; None to give up.

    `status` is the receiver's HTTP status, None if it did not answer; 410 (Gone) ends the delivery. `retry_after` is
    the minimum delay in seconds that the receiver requested; it is honoured up to the longest of `delays`.
    """
    if attempts > len(delays) or status == GONE:
        return None
    return max(delays[attempts - 1], min(retry_after or 0.0, delays[-1]))


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
