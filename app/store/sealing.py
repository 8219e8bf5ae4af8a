"""Contents sealed with their tenant's key, so that the database alone, or a copy of it, does not reveal them.

Each tenant has its own content key (`content_keys`), stored wrapped by the operator's key, which the database never
has. Without that row no content of the tenant can be opened again, in the database or in any backup.
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
"""Size of the nonce drawn at random for each text, so that one key is good for 2^32 texts (NIST SP 800-38D, 8.3)."""


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


_sealer: Final[ContextVar[Sealer | None]] = ContextVar("sealer", default=None)


def seal_with(sealer: Sealer | None) -> None:
    """Seal and open contents with this key in the rest of this task; None stores them unsealed."""
    _sealer.set(sealer)


@contextmanager
def sealing_with(sealer: Sealer | None) -> Iterator[None]:
    """Seal and open contents with this key within the block; None stores them unsealed."""
    before = _sealer.set(sealer)
    try:
        yield
    finally:
        _sealer.reset(before)


def current() -> Sealer | None:
    """Return the sealer in use; None if contents are not sealed."""
    return _sealer.get()


def require_sealer() -> Sealer:
    """Return the sealer to open sealed contents with. Raises StoreUnavailable if this process has none."""
    found = _sealer.get()
    if found is None:
        raise StoreUnavailable("contents are sealed, and this process has no PALIMPSEST_ENCRYPTION_KEY to open them")
    return found
