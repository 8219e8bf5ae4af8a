"""Contents sealed with the key of their tenant: whoever holds only the database, or a copy of it, cannot read them.

Each tenant has a content key of its own (`content_keys`), stored wrapped by the operator's key, which the database
never has. Without that row nothing of the tenant can be opened again, in the database or in any backup.
"""

import base64
import hashlib
import hmac
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final
from uuid import UUID

from app.core.errors import StoreUnavailable

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
"""Drawn at random for each text, so that one key is good for 2^32 texts (NIST SP 800-38D, 8.3)."""


class Sealer:
    """A tenant's content key at work: AES-256 in GCM, which also notices a text that was changed."""

    def __init__(self, key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # takes 40 ms: only where contents are sealed

        self._cipher = AESGCM(key)
        self._search = hmac.digest(key, b"search terms", hashlib.sha256)

    def seal(self, text: str) -> str:
        """Return a text sealed, in base64."""
        nonce = os.urandom(NONCE_BYTES)
        sealed = self._cipher.encrypt(nonce, text.encode("utf-8", "surrogatepass"), None)
        return base64.b64encode(nonce + sealed).decode("ascii")

    def open(self, sealed: str) -> str:
        """Return what was sealed. Raises StoreUnavailable for what was sealed with another key, or changed since."""
        from cryptography.exceptions import InvalidTag

        raw = base64.b64decode(sealed)
        try:
            text = self._cipher.decrypt(raw[:NONCE_BYTES], raw[NONCE_BYTES:], None)
        except InvalidTag:
            raise StoreUnavailable("stored content cannot be opened with its tenant's key") from None
        return text.decode("utf-8", "surrogatepass")

    def salt(self, session_id: UUID) -> bytes:
        """What a session's search terms are hashed with, so that nobody without the key can try words out."""
        return hmac.digest(self._search, session_id.bytes, hashlib.sha256)


_sealer: Final[ContextVar[Sealer | None]] = ContextVar("sealer", default=None)


def seal_with(sealer: Sealer | None) -> None:
    """From here on, what this task stores is sealed with this key, and opened with it; None: stored as it is."""
    _sealer.set(sealer)


@contextmanager
def sealing_with(sealer: Sealer | None) -> Iterator[None]:
    """The same for a block."""
    before = _sealer.set(sealer)
    try:
        yield
    finally:
        _sealer.reset(before)


def current() -> Sealer | None:
    """The key that is sealed with; None where nothing is."""
    return _sealer.get()


def opening() -> Sealer:
    """The key to open something sealed with. Raises StoreUnavailable where this process has none."""
    found = _sealer.get()
    if found is None:
        raise StoreUnavailable("contents are sealed, and this process has no PALIMPSEST_ENCRYPTION_KEY to open them")
    return found
