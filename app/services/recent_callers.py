"""Recently admitted callers, for times when the database is unavailable."""

import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from app.services.tenants import Caller

RECENT_SECONDS: Final = 300.0
"""Seconds for which an admitted key is accepted without the database."""
CALLERS_MAX: Final = 10_000


class RecentCallers:
    """The callers that one process admitted last, by the hash of their key.

    A key that was refused since is removed, and one that expires meanwhile is refused. Callers without a tenant's key
    (an open server, the key of the settings) have no such limits.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        today: Callable[[], datetime] = lambda: datetime.now(UTC),
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
