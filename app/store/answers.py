"""Responses under idempotency keys, stored in the work's transaction or, if it is repeatable, after it (decision 31).

If equal requests race, one response is stored; all of them return it, as does a later repetition.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, TypeVar
from uuid import UUID

import asyncpg

from app.core.errors import IdempotencyConflict
from app.core.log.events import Json
from app.store import texts
from app.store.engine import Connection, Executor
from app.store.ids import SessionRef

_COLUMNS: Final = "session_id, tenant_id, key, request_sha256, answer"
STORE: Final = f"INSERT INTO appends ({_COLUMNS}) VALUES (:session_id, :tenant_id, :key, :request_sha256, :answer)"
FIND: Final = "SELECT request_sha256, answer FROM appends WHERE session_id = :session_id AND key = :key"
_PRIMARY_KEY: Final = "appends_pkey"

Before = TypeVar("Before")
Done = TypeVar("Done")


class AlreadyAnswered(Exception):
    """Another request has used the idempotency key; this one has changed nothing."""


@dataclass(frozen=True, slots=True)
class KeyClaim:
    """An idempotency key of a session, and the hash of its request."""

    ref: SessionRef
    key: str
    request_sha256: bytes

    @property
    def for_append(self) -> "KeyClaim":
        """The claim for the append that this request begins with. Its key ends in a line break, as no header can."""
        return replace(self, key=f"{self.key}\n")


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """The response to an earlier request, and the hash of that request."""

    request_sha256: bytes
    response: Mapping[str, Any]


async def find(connection: Executor, session_id: UUID, key: str) -> StoredResponse | None:
    """Return the response stored under a key; None if there is none."""
    row = await connection.fetchrow(FIND, session_id=session_id, key=key)
    return None if row is None else StoredResponse(bytes(row["request_sha256"]), texts.loads(row["answer"]))


async def find_claimed(connection: Executor, claim: KeyClaim) -> Mapping[str, Any] | None:
    """Return the response to an equal request under the same key. Raises IdempotencyConflict for another request."""
    found = await find(connection, claim.ref.session_id, claim.key)
    if found is not None and found.request_sha256 != claim.request_sha256:
        raise IdempotencyConflict.of_key(claim.key.rstrip("\n"))
    return None if found is None else found.response


async def store(tx: Connection, ref: SessionRef, key: str, request_sha256: bytes, response: Mapping[str, Any]) -> None:
    """Store a response. Raises asyncpg.UniqueViolationError if the key has been used."""
    await tx.execute(STORE, **ref._asdict(), key=key, request_sha256=request_sha256, answer=texts.dumps(response))


async def store_claimed(tx: Connection, claim: KeyClaim, response: Mapping[str, object]) -> None:
    """Store the response to a claim's request. Raises AlreadyAnswered if the key has been used."""
    try:
        await store(tx, claim.ref, claim.key, claim.request_sha256, response)
    except asyncpg.UniqueViolationError:
        raise AlreadyAnswered from None


@dataclass(frozen=True, slots=True)
class ResponseToStore(Generic[Done]):
    """The response to store for a result, and the claim of its request."""

    claim: KeyClaim
    to_response: Callable[[Done], Awaitable[Mapping[str, Json]]]

    def composed_with(self, make: Callable[[Before], Awaitable[Done]]) -> "ResponseToStore[Before]":
        """Return a response to store for a result of type `Before`; `make` converts that to `Done` first."""

        async def to_response(before: Before) -> Mapping[str, Json]:
            return await self.to_response(await make(before))

        return ResponseToStore(self.claim, to_response)

    async def store(self, tx: Connection, done: Done) -> None:
        """Store the response in the transaction that does the work. Raises AlreadyAnswered if the key has been used."""
        await store_claimed(tx, self.claim, await self.to_response(done))


def store_cte(done: str) -> str:
    """Return the SQL of a CTE that stores a response for each row of the CTE `done`. Its parameters are those that
    `store_parameters` returns, and `tenant_id`."""
    values = ":of_session::uuid, :tenant_id, :key::text, :request_sha256::bytea, :answer::json"
    return f"INSERT INTO appends ({_COLUMNS}) SELECT {values} FROM {done}"


def store_parameters(claim: KeyClaim, response: Mapping[str, object]) -> dict[str, object]:
    """Return the parameters of `store_cte`."""
    return {
        "of_session": claim.ref.session_id,
        "key": claim.key,
        "request_sha256": claim.request_sha256,
        "answer": texts.dumps(response),
    }


def is_key_conflict(error: asyncpg.UniqueViolationError) -> bool:
    """Return whether an error says that a key has been used. A partition's constraint has a longer name."""
    return (error.constraint_name or "").startswith(_PRIMARY_KEY)
