"""Answers that are given again to whoever repeats a request under its idempotency key.

An append keeps its own, in the statement that appends. These are of requests that change nothing when they come twice,
so they are kept afterwards: what is lost with a process that dies in between is made again.
"""

import hashlib
from collections.abc import Mapping
from uuid import UUID

import asyncpg

from app.core.errors import IdempotencyConflict
from app.core.log.events import Json
from app.core.log.lines import session_of
from app.store import log, sessions
from app.store.engine import Database


class Answers:
    """The memory of a session's answers, by the keys of their requests."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def before(self, tenant_id: UUID, address: str, key: str, request: str) -> Mapping[str, Json] | None:
        """Return what was kept under a key; None if nothing was. Raises IdempotencyConflict for another request."""
        session_id = sessions.session_key(tenant_id, session_of(address))
        found = await log.remembered(self._database, session_id, key)
        if found is not None and found.request_sha256 != _sha256(request):
            raise IdempotencyConflict("this Idempotency-Key was used with another request", key=key)
        return None if found is None else found.answer

    async def keep(
        self, tenant_id: UUID, address: str, key: str, request: str, answer: Mapping[str, Json]
    ) -> Mapping[str, Json]:
        """Keep an answer, and return the one to give: the first, if a request with this key was quicker.

        Raises IdempotencyConflict when that was another request.
        """
        session_id = sessions.session_key(tenant_id, session_of(address))
        try:
            async with self._database.transaction() as tx:
                await log.remember(tx, session_id, tenant_id, key, _sha256(request), answer)
        except asyncpg.UniqueViolationError:
            return await self.before(tenant_id, address, key, request) or answer
        except asyncpg.ForeignKeyViolationError:  # the session has been erased
            pass
        return answer


def _sha256(request: str) -> bytes:
    return hashlib.sha256(request.encode("utf-8", "surrogatepass")).digest()
