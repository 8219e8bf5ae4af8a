"""Responses stored under idempotency keys, returned when a request is repeated.

The transaction that does the work stores the key (decision 31). If equal requests race, one of them does the work. The
others do nothing and return its response, as does a later repetition.
"""

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from app.core.errors import Conflict, SessionGone
from app.core.log.events import Json
from app.store import answers
from app.store.answers import AlreadyAnswered, KeyClaim
from app.store.engine import Connection, Database

Before = TypeVar("Before")
Done = TypeVar("Done")


@dataclass(frozen=True, slots=True)
class ResponseToStore(Generic[Done]):
    """The response to store for a result, and the claim of its request."""

    claim: KeyClaim
    answer: Callable[[Done], Awaitable[Mapping[str, Json]]]

    def composed_with(self, make: Callable[[Before], Awaitable[Done]]) -> "ResponseToStore[Before]":
        """Return the same for a result of another type, which `make` converts to `Done`."""

        async def answer(before: Before) -> Mapping[str, Json]:
            return await self.answer(await make(before))

        return ResponseToStore(self.claim, answer)

    async def store(self, tx: Connection, done: Done) -> None:
        """Store the response in the transaction that does the work. Raises AlreadyAnswered if the key has been used."""
        await answers.store_claimed(tx, self.claim, await self.answer(done))


class IdempotencyKeys:
    """Stores and finds responses under a session's idempotency keys."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, claim: KeyClaim) -> Mapping[str, Json] | None:
        """Return the response stored under a key, or None. Raises IdempotencyConflict."""
        return await answers.find_claimed(self._database, claim)

    async def winner(self, claim: KeyClaim) -> Mapping[str, Json]:
        """Return the winner's response after a lost race. Raises IdempotencyConflict, or Conflict if there is none."""
        found = await self.find(claim)
        if found is None:
            raise Conflict("the session is being erased")
        return found

    async def store(self, claim: KeyClaim, answer: Mapping[str, Json]) -> Mapping[str, Json]:
        """Store a response after the work is done; return the one to send, which is the first if another request won.

        For requests that may be carried out twice. Raises IdempotencyConflict if the other one was different.
        """
        try:
            async with self._database.transaction() as tx:
                await answers.store_claimed(tx, claim, answer)
        except AlreadyAnswered:
            return await self.find(claim) or answer
        except SessionGone:
            pass
        return answer


def request_sha256(request: str) -> bytes:
    """Return the hash that identifies equal requests."""
    return hashlib.sha256(request.encode("utf-8", "surrogatepass")).digest()
