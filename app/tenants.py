"""API keys, their tenants and scopes."""

import asyncio
import hashlib
import hmac
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final
from uuid import NAMESPACE_URL, UUID, uuid5

import asyncpg
import structlog

from app.core.errors import InvalidRequest, NotFound, OutsidePrefix, StoreUnavailable
from app.core.lexicon.times import time_text
from app.core.log.events import SESSION_ID_PATTERN
from app.store import keys
from app.store.engine import Database, acting_for
from app.store.keys import KeyRequest, KeyRow

EVERY_SECONDS: Final = 60.0
"""Interval at which each process stores the use of a key."""
KEYS_REMEMBERED: Final = 10_000
"""Number of keys above which those not used lately are forgotten."""
CLOSE_SECONDS: Final = 2.0


class LastUsed:
    """Stores when keys were last used, in the background: no request waits for that or fails because of it.

    Uses are collected, and stored by one statement at a time, on one connection of the pool.
    """

    def __init__(self, database: Database, clock: Callable[[], float], today: Callable[[], datetime]) -> None:
        self._database = database
        self._clock = clock
        self._today = today
        self._noted: dict[UUID, float] = {}
        self._tidy_at = KEYS_REMEMBERED
        self._waiting: dict[UUID, dict[UUID, datetime]] = {}
        self._writing: asyncio.Task[None] | None = None

    def note(self, tenant_id: UUID, key_id: UUID) -> None:
        """Note that a tenant's key is being used."""
        now = self._clock()
        noted = self._noted.get(key_id)
        if noted is not None and now - noted < EVERY_SECONDS:
            return
        if len(self._noted) >= self._tidy_at:
            self._noted = {one: at for one, at in self._noted.items() if now - at < EVERY_SECONDS}
            self._tidy_at = max(KEYS_REMEMBERED, 2 * len(self._noted))
        self._noted[key_id] = now
        self._waiting.setdefault(tenant_id, {})[key_id] = self._today()
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write())

    async def aclose(self) -> None:
        """Store the remaining uses, unless that takes too long."""
        if self._writing is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._writing, CLOSE_SECONDS)

    async def _write(self) -> None:
        while self._waiting:
            tenant_id, uses = self._waiting.popitem()
            try:
                with acting_for(tenant_id):
                    await keys.store_last_used(self._database, tenant_id, uses)
            except (StoreUnavailable, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                # These keys are stored when they are used again.
                structlog.get_logger().warning("the use of keys was not written down", error=str(error))


DEFAULT_TENANT: Final = uuid5(NAMESPACE_URL, "palimpsest:default")
SCOPES: Final = ("ingest", "read", "audit", "admin")
CACHE_SECONDS: Final = 2.0
"""Seconds for which a looked-up key is cached: a revoked key stops working within this time in every process."""
CACHE_KEYS_MAX: Final = 10_000
RECENT_SECONDS: Final = 300.0
"""Seconds for which an admitted key is accepted without the database."""
CALLERS_MAX: Final = 10_000
_PREFIX: Final = re.compile(SESSION_ID_PATTERN)


@dataclass(frozen=True, slots=True)
class Caller:
    """The tenant and the rights of a request.

    It may access only sessions whose names begin with `session_prefix`. `expires_at` None: never.
    """

    tenant_id: UUID
    scopes: frozenset[str]
    key_id: UUID | None = field(default=None, compare=False)
    session_prefix: str = ""
    expires_at: datetime | None = None

    def has_scope(self, scope: str) -> bool:
        """Return whether the caller has a scope; `admin` has all."""
        return scope in self.scopes or "admin" in self.scopes

    def may_access(self, session: str) -> bool:
        """Return whether the caller may access a session of this name."""
        return session.startswith(self.session_prefix)


DEFAULT_CALLER: Final = Caller(DEFAULT_TENANT, frozenset(SCOPES))


class RecentCallers:
    """The callers that one process admitted last, by the hash of their key, for times without the database.

    A key that was refused since is removed, and one that expires meanwhile is refused. Callers without a tenant's key
    (an open server, the key of the settings) have no such limits.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, today: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._clock = clock
        self._today = today
        self._admitted: OrderedDict[bytes, tuple[float, Caller]] = OrderedDict()

    def admit(self, hashed: bytes, caller: Caller) -> None:
        """Remember that a key was admitted."""
        self._admitted[hashed] = (self._clock(), caller)
        self._admitted.move_to_end(hashed)
        if len(self._admitted) > CALLERS_MAX:
            self._admitted.popitem(last=False)

    def refuse(self, hashed: bytes) -> None:
        """Remember that a key was refused."""
        self._admitted.pop(hashed, None)

    def find(self, hashed: bytes) -> Caller | None:
        """Return the holder of a recently admitted key; None for any other."""
        at, caller = self._admitted.get(hashed, (0.0, None))
        if caller is None or caller.key_id is None:
            return caller
        expired = caller.expires_at is not None and caller.expires_at <= self._today()
        return None if expired or self._clock() - at > RECENT_SECONDS else caller


@dataclass(frozen=True, slots=True)
class NewKey:
    """A new key. Its secret is shown only once and not stored."""

    key_id: UUID
    secret: str


class Tenants:
    """Authenticates, creates, lists and revokes API keys."""

    def __init__(
        self,
        database: Database,
        bootstrap_key: str | None,
        clock: Callable[[], float] = time.monotonic,
        today: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._database = database
        self._bootstrap = None if bootstrap_key is None else digest(bootstrap_key)
        self._clock = clock
        self._today = today
        self._last_used = LastUsed(database, clock, today)
        self._known: dict[bytes, tuple[float, Caller | None]] = {}
        self._open: tuple[float, bool] | None = None

    async def authenticate(self, secret: str | None) -> Caller | None:
        """Return the holder of a key, None if it is invalid; the default tenant until the first key is created."""
        if secret is None:
            return DEFAULT_CALLER if await self.is_open() else None
        hashed = digest(secret)
        if self._bootstrap is not None and hmac.compare_digest(hashed, self._bootstrap):
            return DEFAULT_CALLER
        now = self._clock()
        cached = self._known.get(hashed)
        if cached is None or now - cached[0] >= CACHE_SECONDS:
            held = await keys.holder(self._database, hashed)
            cached = (now, None if held is None else _caller(held))
            if len(self._known) >= CACHE_KEYS_MAX:
                self._known.clear()
            self._known[hashed] = cached
        found = cached[1]
        if found is None or (found.expires_at is not None and found.expires_at <= self._today()):
            return None
        self._open = (now, False)  # a key was made, perhaps by another process since `is_open` last looked
        if found.key_id is not None:
            self._last_used.note(found.tenant_id, found.key_id)
        return found

    async def needs_key(self) -> bool:
        """Return whether requests need a key: always after the first was created, even when all are revoked."""
        return self._bootstrap is not None or await keys.any_created(self._database)

    async def create_key(
        self,
        tenant: str,
        name: str,
        scopes: Sequence[str],
        *,
        expires_at: datetime | None = None,
        session_prefix: str | None = None,
    ) -> NewKey:
        """Create a key of a tenant, and the tenant if new. Raises InvalidRequest."""
        asked, secret = KeyRequest(name, scopes, expires_at, session_prefix), _secret()
        self._check(asked)
        return NewKey((await keys.create(self._database, tenant, asked, digest(secret))).id, secret)

    async def make_key(self, who: Caller, asked: KeyRequest) -> tuple[KeyRow, str]:
        """Create a key of the caller's tenant; return it and its secret.

        It has no more sessions and no later expiry than the caller's own key. The first key of all closes the server,
        so it must be able to create others: for all sessions, without expiry. Raises InvalidRequest or OutsidePrefix.
        """
        self._check(asked)
        if not (asked.session_prefix or "").startswith(who.session_prefix):
            raise OutsidePrefix(
                f"this key creates keys for its own sessions only: session_prefix must begin with {who.session_prefix}"
            )
        if who.expires_at is not None and (asked.expires_at is None or asked.expires_at > who.expires_at):
            raise OutsidePrefix(
                f"this key cannot create one that outlives it: expires_at must be at most {time_text(who.expires_at)}"
            )
        if await self.is_open() and ("admin" not in asked.scopes or asked.expires_at or asked.session_prefix):
            raise InvalidRequest(
                "the first key closes the server to everyone without one: it must have the scope admin, no expiry, and"
                " no session prefix",
                field="scopes",
            )
        secret = _secret()
        row = await keys.add(self._database, who.tenant_id, asked, digest(secret))
        self._open = (self._clock(), False)
        return row, secret

    async def keys(self, who: Caller, after: tuple[datetime, UUID] | None, limit: int) -> list[KeyRow]:
        """Return the keys of the caller's tenant with a session prefix within its own, newest first."""
        return await keys.tenant_keys(self._database, who.tenant_id, who.session_prefix, after, limit)

    async def revoke_key(self, who: Caller, key_id: UUID) -> None:
        """Revoke one of the keys that `keys` lists. A repetition changes nothing. Raises NotFound."""
        if not await keys.revoke_of_tenant(self._database, who.tenant_id, who.session_prefix, key_id):
            raise NotFound(f"there is no key {key_id}", key=str(key_id))
        self._known = {hashed: one for hashed, one in self._known.items() if one[1] is None or one[1].key_id != key_id}

    async def aclose(self) -> None:
        """Store the remaining uses of keys; the database stays open."""
        await self._last_used.aclose()

    def _check(self, asked: KeyRequest) -> None:
        if not asked.scopes or not set(asked.scopes) <= set(SCOPES):
            raise InvalidRequest(f"scopes must be some of {', '.join(SCOPES)}", field="scopes")
        if asked.expires_at is not None and asked.expires_at <= self._today():
            raise InvalidRequest("expires_at must be in the future", field="expires_at")
        if asked.session_prefix is not None and _PREFIX.fullmatch(asked.session_prefix) is None:
            raise InvalidRequest(f"session_prefix must match {SESSION_ID_PATTERN}", field="session_prefix")

    async def is_open(self) -> bool:
        """Return whether requests need no key. Once they need one they always will, so that result is kept."""
        now = self._clock()
        if self._open is None or (self._open[1] and now - self._open[0] >= CACHE_SECONDS):
            self._open = (now, not await self.needs_key())
        return self._open[1]


def _caller(held: keys.Holder) -> Caller:
    return Caller(
        held.tenant_id, frozenset(held.scopes), held.key_id, held.session_prefix or "", expires_at=held.expires_at
    )


def _secret() -> str:
    return "pal_" + secrets.token_urlsafe(32)


def digest(secret: str) -> bytes:
    """Return the stored hash of a key. Plain SHA-256 is enough for 256 random bits, which cannot be guessed."""
    return hashlib.sha256(secret.encode()).digest()
