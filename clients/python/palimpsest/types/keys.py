"""Types of `keys`. Written by `make openapi` from the API's document."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from palimpsest._model import Model


@dataclass(frozen=True, kw_only=True)
class KeyMade(Model):
    """A newly created API key, with its secret."""

    id: str
    """Id of the key, a UUID."""
    name: str
    """Name of the key, which says its purpose."""
    scopes: list[Literal["ingest", "read", "audit", "admin"]]
    """Scopes of the key: `ingest` (append, change sessions, report outcomes), `read` (contexts, logs, records),
    `audit` (search across sessions), `admin` (all of these, erasure, policies, keys and webhooks).
    """
    session_prefix: str | None
    """Prefix of the ids of the sessions that the key can access; null if it can access all."""
    created_at: datetime
    """Time of creation."""
    expires_at: datetime | None
    """Time at which the key stops working; null if never."""
    revoked_at: datetime | None
    """Time at which the key was revoked; null if it was not."""
    last_used_at: datetime | None
    """Time of the key's last use, exact to about a minute; null if it was never used."""
    secret: str
    """Secret to send as `Authorization: Bearer <secret>`. Only this response contains it."""


@dataclass(frozen=True, kw_only=True)
class KeyOut(Model):
    """An API key, without its secret."""

    id: str
    """Id of the key, a UUID."""
    name: str
    """Name of the key, which says its purpose."""
    scopes: list[Literal["ingest", "read", "audit", "admin"]]
    """Scopes of the key: `ingest` (append, change sessions, report outcomes), `read` (contexts, logs, records),
    `audit` (search across sessions), `admin` (all of these, erasure, policies, keys and webhooks).
    """
    session_prefix: str | None
    """Prefix of the ids of the sessions that the key can access; null if it can access all."""
    created_at: datetime
    """Time of creation."""
    expires_at: datetime | None
    """Time at which the key stops working; null if never."""
    revoked_at: datetime | None
    """Time at which the key was revoked; null if it was not."""
    last_used_at: datetime | None
    """Time of the key's last use, exact to about a minute; null if it was never used."""


@dataclass(frozen=True, kw_only=True)
class KeyPage(Model):
    """A page of API keys."""

    items: list[KeyOut]
    """API keys, newest first, revoked and expired ones included."""
    next_cursor: str | None
    """Cursor of the next page, to be passed as `cursor`; null on the last page."""
