"""What a webhook says and to whom: signatures as Standard Webhooks has them, which addresses are public, and how long
to wait between attempts."""

import base64
import binascii
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final
from urllib.parse import SplitResult, urlsplit

from standardwebhooks import Webhook

from app.core.errors import InvalidRequest

EVENTS: Final = ("compaction.scheduled", "compaction.started", "compaction.finished", "compaction.failed")
URL_CHARS_MAX: Final = 2048
SECRET_PREFIX: Final = "whsec_"  # noqa: S105  # what the specification has secrets begin with, and no secret
SECRET_BYTES: Final = (24, 64)
DELAYS: Final[tuple[float, ...]] = (5.0, 30.0, 120.0, 600.0, 1_800.0, 7_200.0, 18_000.0, 36_000.0)
"""Seconds between attempts: nine of them in about 18 hours."""
GONE: Final = 410
HOST_CHARS_MAX: Final = 253
_LABEL: Final = re.compile(r"[A-Za-z0-9_-]{1,63}")
_NAT64: Final = IPv6Network("64:ff9b::/96")
_SPECIAL: Final = tuple(
    map(
        ip_network,
        (
            "168.63.129.16/32",  # Azure's own services, from inside any of its machines
            "192.0.0.0/24",  # IETF protocol assignments, among them the metadata service of Oracle's cloud
            "192.88.99.0/24",  # relays of 6to4, deprecated
            "::/96",  # IPv4-compatible, deprecated: an IPv4 address of any kind is inside
            "::ffff:0:0:0/96",  # IPv4-translated, the same
            "64:ff9b:1::/48",  # NAT64 within a network of one's own
            "100:0:0:1::/64",  # dummy prefix
            "3fff::/20",  # documentation
            "5f00::/16",  # segment routing
            "fec0::/10",  # site-local, deprecated
        ),
    )
)
"""Nothing that anyone on the internet could call, although `is_global` says so of some, by Python's version."""


def secret_of(raw: bytes) -> str:
    """A secret as it is written."""
    return SECRET_PREFIX + base64.b64encode(raw).decode()


def check_secret(secret: str) -> None:
    """Raises InvalidRequest for what no receiver could verify with."""
    least, most = SECRET_BYTES
    if not secret.startswith(SECRET_PREFIX) or not least <= len(_key(secret)) <= most:
        raise InvalidRequest(f"secret must be {SECRET_PREFIX} and {least} to {most} bytes in base64", field="secret")


def signature(secret: str, id: str, timestamp: int, body: str) -> str:
    """The value of `webhook-signature` for a body that is sent at `timestamp` (Unix seconds) under an id."""
    return Webhook(secret).sign(id, datetime.fromtimestamp(timestamp, UTC), body)


def _key(secret: str) -> bytes:
    try:
        return base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        return b""


def check_url(url: str, *, private: bool) -> None:
    """Raises InvalidRequest for what cannot be called; without `private`, for what names this machine or a private one.

    What a name resolves to is looked at when it is called, since it may change.
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
    if not _can_be_called(host, bracketed="[" in parts.netloc):
        raise _bad_url("must name a host by an address or by labels of 1 to 63 characters")
    if _has_more(parts):
        raise _bad_url("must have neither credentials nor a fragment")
    if not private and (host == "localhost" or host.endswith(".localhost") or _names_private(host)):
        raise _bad_url("must not name this machine or a private address (PALIMPSEST_WEBHOOK_PRIVATE_TARGETS)")


def _can_be_called(host: str, *, bracketed: bool) -> bool:
    if bracketed:
        try:
            return isinstance(ip_address(host), IPv6Address)
        except ValueError:
            return False
    labels = host.removesuffix(".").split(".")
    return len(host) <= HOST_CHARS_MAX and all(map(_LABEL.fullmatch, labels))


def _has_more(parts: SplitResult) -> bool:
    return parts.username is not None or parts.password is not None or bool(parts.fragment)


def _names_private(host: str) -> bool:
    try:
        return not is_public(host)
    except ValueError:
        return False


def _bad_url(why: str) -> InvalidRequest:
    return InvalidRequest(f"url {why}", field="url")


def is_public(address: str) -> bool:
    """Whether an address is one that anyone on the internet could call; also where IPv6 only wraps an IPv4 one.

    Raises ValueError for what is no address.
    """
    found = ip_address(address)
    if any(found in network for network in _SPECIAL):
        return False
    if isinstance(found, IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour
        if inner is None and found in _NAT64:
            inner = IPv4Address(int(found) & 0xFFFF_FFFF)
        if inner is not None:
            return is_public(str(inner))
    return found.is_global and not found.is_multicast


def next_delay(
    attempts: int, status: int | None, retry_after: float | None, delays: Sequence[float] = DELAYS
) -> float | None:
    """Seconds until a delivery that failed so many times is tried again, None when it is given up.

    `status` is the receiver's, None without an answer; one that says it is gone is not asked again. Its `retry_after`
    is kept to, within the longest delay.
    """
    if attempts > len(delays) or status == GONE:
        return None
    return max(delays[attempts - 1], min(retry_after or 0.0, delays[-1]))
