"""Contents sealed with their tenant's key, so that the database alone, or a copy of it, does not reveal them.

Each tenant has its own content key, stored wrapped by the operator's key, which the database never has. Once that
row is deleted, nobody can open the tenant's contents again. A backup made before the row was deleted still has it.
"""

import base64
import hashlib
import hmac
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final
from uuid import UUID

from app.core.errors import ContentsErased, StoreUnavailable
from app.store.engine import Database, Executor
from app.store.rows import columns, decode
from app.store.texts import ContentCiphers

if TYPE_CHECKING:
    from cryptography.fernet import MultiFernet


KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
"""Size of the nonce drawn at random for each text, so that one key is good for 2^32 texts (NIST SP 800-38D, 8.3)."""
CACHE_SECONDS: Final = 2.0
"""Seconds for which a key is cached: no process opens anything with a dropped key after this time."""
TENANTS_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class ContentKey:
    """A tenant's content key; `wrapped` is None once it was dropped."""

    tenant_id: UUID
    wrapped: bytes | None
    created_at: datetime
    dropped_at: datetime | None


_COLUMNS = columns(ContentKey)


async def find_key(database: Database, tenant_id: UUID) -> ContentKey | None:
    """Return a tenant's key; None if it never had one."""
    row = await database.fetchrow(
        f"SELECT {_COLUMNS} FROM content_keys WHERE tenant_id = :tenant_id", tenant_id=tenant_id
    )
    return None if row is None else decode(ContentKey, row)


async def store_key(database: Database, tenant_id: UUID, wrapped: bytes) -> None:
    """Store a tenant's key, unless it has or had one."""
    await database.execute(
        "INSERT INTO content_keys (tenant_id, wrapped) VALUES (:tenant_id, :wrapped) ON CONFLICT DO NOTHING",
        tenant_id=tenant_id,
        wrapped=wrapped,
    )


@dataclass(frozen=True, slots=True)
class ListedKey(ContentKey):
    """A content key with the name of its tenant."""

    tenant: str


async def all_keys(connection: Executor) -> list[ListedKey]:
    """Return all tenants' keys by tenant name. Only the tables' owner sees them."""
    rows = await connection.fetch(
        f"SELECT {_COLUMNS}, (SELECT name FROM tenants t WHERE t.tenant_id = k.tenant_id) AS tenant "
        "FROM content_keys k ORDER BY tenant"
    )
    return [decode(ListedKey, row) for row in rows]


async def drop_key(database: Database, tenant: str) -> bool:
    """Drop the key of the tenant with this name; return False if it has none left to drop."""
    row = await database.fetchrow(
        "UPDATE content_keys k SET wrapped = NULL, dropped_at = now() FROM tenants t "
        "WHERE t.tenant_id = k.tenant_id AND t.name = :name AND k.wrapped IS NOT NULL RETURNING k.tenant_id",
        name=tenant,
    )
    return row is not None


class Sealer:
    """A tenant's content key in use: AES-256 in GCM, which also detects a text that was changed."""

    def __init__(self, key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # takes 40 ms: only if contents are sealed

        self._cipher = AESGCM(key)
        self._search = hmac.digest(key, b"search terms", hashlib.sha256)

    def seal(self, text: str) -> str:
        """Return a text sealed, in base64."""
        nonce = os.urandom(NONCE_BYTES)
        sealed = self._cipher.encrypt(nonce, text.encode("utf-8", "surrogatepass"), None)
        return base64.b64encode(nonce + sealed).decode("ascii")

    def open(self, sealed: str) -> str:
        """Return the text that was sealed. Raises StoreUnavailable if the key is another or the text was changed."""
        from cryptography.exceptions import InvalidTag

        raw = base64.b64decode(sealed)
        try:
            text = self._cipher.decrypt(raw[:NONCE_BYTES], raw[NONCE_BYTES:], None)
        except InvalidTag:
            raise StoreUnavailable("stored content cannot be opened with its tenant's key") from None
        return text.decode("utf-8", "surrogatepass")

    def salt(self, session_id: UUID) -> bytes:
        """Return the key that a session's search terms are hashed with, so that nobody else can try out words."""
        return hmac.digest(self._search, session_id.bytes, hashlib.sha256)


class Keyring(ContentCiphers):
    """The tenants' keys, made when they are first needed.

    `operator` are the operator's keys (Fernet), separated by commas: the first wraps, each unwraps. If there are none,
    nothing is sealed, and the contents of a tenant that has a key can be neither read nor written.
    """

    def __init__(self, database: Database, operator: str | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._operator = None if operator is None else parse_keys(operator)
        self._clock = clock
        self._known: dict[UUID, tuple[float, Sealer | None]] = {}

    async def cipher(self, tenant_id: UUID) -> Sealer | None:
        """Return the sealer of a tenant's contents; None if they are not sealed.

        The caller must act for the tenant. Raises ContentsErased if its key was dropped, StoreUnavailable if it cannot
        be unwrapped.
        """
        now = self._clock()
        held = self._known.get(tenant_id)
        if held is not None and now - held[0] < CACHE_SECONDS:
            return held[1]
        found = await find_key(self._database, tenant_id)
        if found is None and self._operator is not None:
            await store_key(self._database, tenant_id, self._operator.encrypt(os.urandom(KEY_BYTES)))
            found = await find_key(self._database, tenant_id)
        sealer = None if found is None else self._unwrap(found)
        if len(self._known) >= TENANTS_MAX:
            self._known.clear()
        self._known[tenant_id] = (now, sealer)
        return sealer

    def _unwrap(self, key: ContentKey) -> Sealer:
        if key.wrapped is None:
            self._known.pop(key.tenant_id, None)
            raise ContentsErased("the key of this tenant's contents was dropped: they can never be read again")
        if self._operator is None:
            raise StoreUnavailable("this tenant's contents are sealed, and PALIMPSEST_ENCRYPTION_KEY is not set here")
        from cryptography.fernet import InvalidToken

        try:
            return Sealer(self._operator.decrypt(key.wrapped))
        except InvalidToken:
            raise StoreUnavailable("this tenant's key is not wrapped by any key of PALIMPSEST_ENCRYPTION_KEY") from None


def parse_keys(operator: str) -> "MultiFernet":
    """Parse the operator's keys. Raises ValueError unless each is a Fernet key."""
    from cryptography.fernet import Fernet, MultiFernet  # takes 40 ms: only where contents are sealed

    return MultiFernet([Fernet(one.strip()) for one in operator.split(",")])


async def rewrap(database: Database, operator: str) -> int:
    """Wrap every tenant's key with the first of the operator's keys; return their number.

    All or none: raises StoreUnavailable if one cannot be unwrapped by any of them.
    """
    from cryptography.fernet import InvalidToken

    keys = parse_keys(operator)
    async with database.transaction() as tx:
        held = [one for one in await all_keys(tx) if one.wrapped is not None]
        for one in held:
            try:
                wrapped = keys.rotate(one.wrapped or b"")
            except InvalidToken:
                detail = f"the key of tenant {one.tenant!r} is not wrapped by any of these keys"
                raise StoreUnavailable(detail) from None
            await tx.execute(
                "UPDATE content_keys SET wrapped = :wrapped WHERE tenant_id = :tenant_id AND wrapped IS NOT NULL",
                tenant_id=one.tenant_id,
                wrapped=wrapped,
            )
    return len(held)
