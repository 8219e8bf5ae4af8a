"""Answers that are given again to whoever repeats a request under its idempotency key.

A key is stored by the transaction that does what the request asks for (decision 31). Of equal requests that race, one
is done. The others do nothing and are given its answer, as is whoever repeats it when the first answer was lost.
"""

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from app.core.errors import Conflict, SessionGone
from app.core.log.events import Json
from app.store import answers
from app.store.answers import AnsweredBefore, KeyClaim
from app.store.engine import Connection, Database

Before = TypeVar("Before")
Done = TypeVar("Done")


@dataclass(frozen=True, slots=True)
class Keep(Generic[Done]):
    """The answer to store for what is done, and the claim of the request that asks for it."""

    claim: KeyClaim
    answer: Callable[[Done], Awaitable[Mapping[str, Json]]]

    def after(self, make: Callable[[Before], Awaitable[Done]]) -> "Keep[Before]":
        """Return the same for what `make` makes `Done` of."""

        async def answer(before: Before) -> Mapping[str, Json]:
            return await self.answer(await make(before))

        return Keep(self.claim, answer)

    async def store(self, tx: Connection, done: Done) -> None:
        """Store the answer in the transaction that does it. Raises AnsweredBefore if the key has been used."""
        await answers.store_claimed(tx, self.claim, await self.answer(done))


class Answers:
    """The answers that are stored under a session's idempotency keys."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def before(self, claim: KeyClaim) -> Mapping[str, Json] | None:
        """Return what was answered before under a key; None if nothing was. Raises IdempotencyConflict."""
        return await answers.find_claimed(self._database, claim)

    async def first(self, claim: KeyClaim) -> Mapping[str, Json]:
        """Return the answer to the request that was quicker. Raises IdempotencyConflict, or Conflict if it is gone."""
        found = await self.before(claim)
        if found is None:
            raise Conflict("the session is being erased")
        return found

    async def keep(self, claim: KeyClaim, answer: Mapping[str, Json]) -> Mapping[str, Json]:
        """Store an answer behind what was done, and return the one to give: the first, if a request was quicker.

        For requests that change nothing when they are done twice. Raises IdempotencyConflict if that was another one.
        """
        try:
            async with self._database.transaction() as tx:
                await answers.store_claimed(tx, claim, answer)
        except AnsweredBefore:
            return await self.before(claim) or answer
        except SessionGone:
            pass
        return answer


def request_sha256(request: str) -> bytes:
    """Return the hash by which equal requests are told from others."""
    return hashlib.sha256(request.encode("utf-8", "surrogatepass")).digest()
