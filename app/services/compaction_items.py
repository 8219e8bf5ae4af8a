"""Sealed compaction items, each a place in a session's log that only this tenant's items can name.

A client holds an item in place of the messages up to there. End users of an application may hold some too, so nobody
may make or change one: the item is encrypted and authenticated with a key of the tenant, and bound to the tenant.
"""

import base64
import json
import os
from binascii import Error as InvalidBase64
from dataclasses import asdict
from typing import TYPE_CHECKING, Final
from uuid import UUID

from app.core.errors import InvalidItem
from app.core.wire.compacted import MARK, CompactedPlace
from app.store import keys
from app.store.engine import Database

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
TENANTS_MAX: Final = 10_000
UNREADABLE: Final = (
    "the compaction item cannot be read: it was altered, or it was made for another tenant or by another server"
)


class CompactionItems:
    """Seals and opens tenants' compaction items, in every process with the same keys."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: dict[UUID, AESGCM] = {}

    async def seal(self, tenant_id: UUID, place: CompactedPlace) -> str:
        """Return a place as the content of an item."""
        cipher = await self._cipher(tenant_id)
        if cipher is None:
            await keys.make_item_key(self._database, tenant_id, os.urandom(KEY_BYTES))
            cipher = await self._cipher(tenant_id)
        if cipher is None:
            raise RuntimeError("a key was not stored although nothing was in its way")
        nonce = os.urandom(NONCE_BYTES)
        text = json.dumps(asdict(place), separators=(",", ":")).encode()
        sealed = nonce + cipher.encrypt(nonce, text, tenant_id.bytes)
        return MARK + base64.urlsafe_b64encode(sealed).decode("ascii")

    async def open(self, tenant_id: UUID, sealed: str) -> CompactedPlace:
        """Return the place in an item's content. Raises InvalidItem."""
        from cryptography.exceptions import InvalidTag

        cipher = await self._cipher(tenant_id)
        try:
            raw = base64.b64decode(sealed.removeprefix(MARK), altchars=b"-_", validate=True)
            if cipher is None or not sealed.startswith(MARK):
                raise InvalidTag
            text = cipher.decrypt(raw[:NONCE_BYTES], raw[NONCE_BYTES:], tenant_id.bytes)
        except (InvalidTag, InvalidBase64, ValueError):
            raise InvalidItem(UNREADABLE, field="encrypted_content") from None
        return CompactedPlace(**json.loads(text))

    async def _cipher(self, tenant_id: UUID) -> "AESGCM | None":
        """Return a tenant's cipher; None before its first item."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # takes 40 ms: only where items are in use

        found = self._known.get(tenant_id)
        if found is None and (key := await keys.item_key(self._database, tenant_id)) is not None:
            if len(self._known) >= TENANTS_MAX:
                self._known.clear()
            found = self._known[tenant_id] = AESGCM(key)
        return found
