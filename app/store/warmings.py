"""Warmings: requests that kept the provider's cache of a call."""

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from app.store.engine import Database
from app.store.ids import SessionRef, session_ref
from app.store.lines import LINE_KEYS
from app.store.rows import columns, decode, parameters


@dataclass(frozen=True, slots=True)
class WarmedCall:
    """The fields of a call on which the price of its warming depends."""

    policy_name: str
    policy_version: int
    format: str
    model: str | None


@dataclass(frozen=True, slots=True)
class WarmingUsage:
    """The input tokens of a warming: all of them, and those read from and written to the cache. None: it failed."""

    input_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None


_COPIED: Final = f"session_id, tenant_id, call_id, view, {columns(WarmedCall)}"
# The view's cache lives longer now; a process that holds the view in memory reads it again.
ADD: Final = f"""
WITH added AS (
    INSERT INTO warmings ({_COPIED}, id, {columns(WarmingUsage)})
    SELECT {_COPIED}, :id, :input_tokens, :cache_read_tokens, :cache_write_tokens
    FROM model_calls WHERE session_id = :session_id AND tenant_id = :tenant_id AND call_id = :call_id
    ON CONFLICT DO NOTHING RETURNING session_id, view, input_tokens
), kept AS (
    UPDATE views v SET warmed_at = now() FROM added a
    WHERE v.session_id = :session_id AND a.session_id = :session_id AND v.view = a.view AND a.input_tokens IS NOT NULL
)
UPDATE sessions SET version = version + 1
WHERE session_id = :session_id AND tenant_id = :tenant_id
  AND EXISTS (SELECT FROM added a WHERE a.session_id = :session_id)
"""
CALL: Final = (
    f"SELECT {columns(WarmedCall)} FROM model_calls "
    "WHERE session_id = :session_id AND tenant_id = :tenant_id AND call_id = :call_id"
)
SPENT: Final = (
    "SELECT coalesce(sum(input_tokens), 0)::bigint AS input_tokens, "
    "coalesce(sum(cache_read_tokens), 0)::bigint AS cache_read_tokens, "
    "coalesce(sum(cache_write_tokens), 0)::bigint AS cache_write_tokens "
    f"FROM warmings WHERE session_id IN ({LINE_KEYS}) AND tenant_id = :tenant_id"
)


async def find_call(database: Database, ref: SessionRef, call_id: UUID) -> WarmedCall | None:
    """Return a call of a session or line; None if there is none."""
    row = await database.fetchrow(CALL, **ref._asdict(), call_id=call_id)
    return None if row is None else decode(WarmedCall, row)


async def add(database: Database, ref: SessionRef, call_id: UUID, id: UUID, usage: WarmingUsage) -> None:
    """Record a warming of a call, unless its `id` is recorded or the call is gone."""
    await database.execute(ADD, **ref._asdict(), call_id=call_id, id=id, **parameters(usage))


async def spent(database: Database, tenant_id: UUID, name: str) -> WarmingUsage:
    """Return the sums of the warmings of a session, all lines included."""
    row = await database.fetchrow(SPENT, **session_ref(tenant_id, name)._asdict())
    return WarmingUsage() if row is None else decode(WarmingUsage, row)
