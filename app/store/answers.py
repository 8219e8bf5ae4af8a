"""Answers under idempotency keys, each stored in the transaction that does what its request asks for."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID

import asyncpg

from app.core.errors import IdempotencyConflict
from app.store import texts
from app.store.engine import Connection, Database

_COLUMNS: Final = "session_id, tenant_id, key, request_sha256, answer"
_STORE: Final = f"INSERT INTO appends ({_COLUMNS}) VALUES (:session_id, :tenant_id, :key, :request_sha256, :answer)"
_FIND: Final = "SELECT request_sha256, answer FROM appends WHERE session_id = :session_id AND key = :key"
HOT: Final = {"the answer under a key": _STORE, "what was answered under a key": _FIND}
_PRIMARY_KEY: Final = "appends_pkey"


class AnsweredBefore(Exception):
    """Another request has used the idempotency key; nothing of this one was done."""


@dataclass(frozen=True, slots=True)
class KeyClaim:
    """An idempotency key of a session, and the hash of the request that it stands for."""

    session_id: UUID
    tenant_id: UUID
    key: str
    request_sha256: bytes

    @property
    def of_append(self) -> "KeyClaim":
        """The claim of what this request appends before it does the rest. No header can hold such a key."""
        return replace(self, key=f"{self.key}\n")


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """The answer to an earlier request, and the hash of that request."""

    request_sha256: bytes
    answer: Mapping[str, Any]


async def find(connection: Connection | Database, session_id: UUID, key: str) -> StoredAnswer | None:
    """Return what is stored under a key; None if nothing is."""
    row = await connection.fetchrow(_FIND, session_id=session_id, key=key)
    return None if row is None else StoredAnswer(bytes(row["request_sha256"]), texts.loads(row["answer"]))


async def find_claimed(connection: Connection | Database, claim: KeyClaim) -> Mapping[str, Any] | None:
    """Return the answer to an equal request under the same key. Raises IdempotencyConflict for another request."""
    found = await find(connection, claim.session_id, claim.key)
    if found is not None and found.request_sha256 != claim.request_sha256:
        raise IdempotencyConflict("this Idempotency-Key was used with another request", key=claim.key.rstrip("\n"))
    return None if found is None else found.answer


async def store(
    tx: Connection, session_id: UUID, tenant_id: UUID, key: str, request_sha256: bytes, answer: Mapping[str, object]
) -> None:
    """Store an answer. Raises asyncpg.UniqueViolationError if the key has been used."""
    await tx.execute(
        _STORE,
        session_id=session_id,
        tenant_id=tenant_id,
        key=key,
        request_sha256=request_sha256,
        answer=texts.dumps(answer),
    )


async def store_claimed(tx: Connection, claim: KeyClaim, answer: Mapping[str, object]) -> None:
    """Store the answer to a claim's request. Raises AnsweredBefore if the key has been used."""
    try:
        await store(tx, claim.session_id, claim.tenant_id, claim.key, claim.request_sha256, answer)
    except asyncpg.UniqueViolationError:
        raise AnsweredBefore from None


def storing(done: str) -> str:
    """Return the SQL of a statement's part that stores an answer for each row of `done`, another part of it.

    It takes the parameters that `stored` returns, and the tenant's.
    """
    values = ":of_session::uuid, :tenant_id, :key::text, :request_sha256::bytea, :answer::json"
    return f"INSERT INTO appends ({_COLUMNS}) SELECT {values} FROM {done}"


def stored(claim: KeyClaim, answer: Mapping[str, object]) -> dict[str, object]:
    """Return the parameters of `storing`."""
    return {
        "of_session": claim.session_id,
        "key": claim.key,
        "request_sha256": claim.request_sha256,
        "answer": texts.dumps(answer),
    }


def is_used(error: asyncpg.UniqueViolationError) -> bool:
    """Whether an error says that a key has been used. A shard's constraint has a number behind its name."""
    return (error.constraint_name or "").startswith(_PRIMARY_KEY)
