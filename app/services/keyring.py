"""Keys that seal contents: one for each tenant, wrapped by the operator's."""

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final
from uuid import UUID

from app.core.errors import ContentsErased, StoreUnavailable
from app.store import content_keys
from app.store.engine import Database
from app.store.sealing import KEY_BYTES, Sealer

if TYPE_CHECKING:
    from cryptography.fernet import MultiFernet

CACHE_SECONDS: Final = 2.0
"""Seconds for which a key is cached: no process opens anything with a dropped key after this time."""
TENANTS_MAX: Final = 10_000


class Keyring:
    """The tenants' keys, made when they are first needed.

    `operator` are the operator's keys (Fernet), separated by commas: the first wraps, each unwraps. If there are none,
    nothing is sealed, and the contents of a tenant that has a key can be neither read nor written.
    """

    def __init__(self, database: Database, operator: str | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._operator = None if operator is None else parse_keys(operator)
        self._clock = clock
        self._known: dict[UUID, tuple[float, Sealer | None]] = {}

    async def sealer(self, tenant_id: UUID) -> Sealer | None:
        """Return the sealer of a tenant's contents; None if they are not sealed.

        The caller must act for the tenant. Raises ContentsErased if its key was dropped, StoreUnavailable if it cannot
        be unwrapped.
        """
        now = self._clock()
        held = self._known.get(tenant_id)
        if held is not None and now - held[0] < CACHE_SECONDS:
            return held[1]
        found = await content_keys.find(self._database, tenant_id)
        if found is None and self._operator is not None:
            await content_keys.make(self._database, tenant_id, self._operator.encrypt(os.urandom(KEY_BYTES)))
            found = await content_keys.find(self._database, tenant_id)
        sealer = None if found is None else self._unwrap(found)
        if len(self._known) >= TENANTS_MAX:
            self._known.clear()
        self._known[tenant_id] = (now, sealer)
        return sealer

    def _unwrap(self, key: content_keys.ContentKey) -> Sealer:
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
        held = [one for one in await content_keys.every(tx) if one.wrapped is not None]
        for one in held:
            try:
                await content_keys.rewrap(tx, one.tenant_id, keys.rotate(one.wrapped or b""))
            except InvalidToken:
                raise StoreUnavailable(
                    f"the key of tenant {one.tenant!r} is not wrapped by any of these keys"
                ) from None
    return len(held)
