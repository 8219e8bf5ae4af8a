"""Who is asking: API keys, their tenants and scopes."""

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import NAMESPACE_URL, UUID, uuid5

from app.core.errors import InvalidRequest
from app.store import keys
from app.store.engine import Database

DEFAULT_TENANT: Final = uuid5(NAMESPACE_URL, "palimpsest:default")
SCOPES: Final = ("ingest", "read", "audit", "admin")
CACHE_SECONDS: Final = 2.0
"""How long an answer about a key is believed: a revoked key stops working within this time, in every process."""
CACHE_KEYS_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose data a request may touch, and how."""

    tenant_id: UUID
    scopes: frozenset[str]
    key_id: UUID | None = field(default=None, compare=False)

    def may(self, scope: str) -> bool:
        """`admin` may everything."""
        return scope in self.scopes or "admin" in self.scopes


ANYONE: Final = Caller(DEFAULT_TENANT, frozenset(SCOPES))


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key just made; the secret is shown this once and stored nowhere."""

    key_id: UUID
    secret: str


class Tenants:
    """Keys and who holds them."""

    def __init__(
        self, database: Database, bootstrap_key: str | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._database = database
        self._bootstrap = None if bootstrap_key is None else digest(bootstrap_key)
        self._clock = clock
        self._known: dict[bytes, tuple[float, Caller | None]] = {}
        self._open: tuple[float, bool] | None = None

    async def authenticate(self, secret: str | None) -> Caller | None:
        """Who holds the key; where none was ever made, everyone is the default tenant. None: not let in."""
        if secret is None:
            return ANYONE if await self.is_open() else None
        hashed = digest(secret)
        if self._bootstrap is not None and hmac.compare_digest(hashed, self._bootstrap):
            return ANYONE
        now = self._clock()
        cached = self._known.get(hashed)
        if cached is None or now - cached[0] >= CACHE_SECONDS:
            held = await keys.holder(self._database, hashed)
            cached = (now, None if held is None else Caller(held[0], frozenset(held[1]), held[2]))
            if len(self._known) >= CACHE_KEYS_MAX:
                self._known.clear()
            self._known[hashed] = cached
        return cached[1]

    async def needs_key(self) -> bool:
        """Whether requests are refused without a key: from the first one made on, even when all are revoked."""
        return self._bootstrap is not None or await keys.any_made(self._database)

    async def create_key(self, tenant: str, name: str, scopes: Sequence[str]) -> NewKey:
        """A new key. Raises InvalidRequest for an unknown scope."""
        unknown = sorted(set(scopes) - set(SCOPES))
        if unknown or not scopes:
            raise InvalidRequest(f"scopes must be some of {', '.join(SCOPES)}", field="scopes")
        secret = "pal_" + secrets.token_urlsafe(32)
        return NewKey(await keys.create(self._database, tenant, name, scopes, digest(secret)), secret)

    async def is_open(self) -> bool:
        """Whether requests need no key. Once they do they always will, so that is asked of the database no more."""
        now = self._clock()
        if self._open is None or (self._open[1] and now - self._open[0] >= CACHE_SECONDS):
            self._open = (now, not await self.needs_key())
        return self._open[1]


def digest(secret: str) -> bytes:
    """What is stored of a key. Plain SHA-256 is enough: a key is 256 random bits, which no guessing finds."""
    return hashlib.sha256(secret.encode()).digest()
