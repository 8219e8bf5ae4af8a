"""Counts of the work that workers have done, and of the tokens spent on tenants' summaries, shared by all processes."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Final
from uuid import UUID

from app.store.engine import Database, Executor
from app.store.rows import columns, decode, parameters

BOUNDS: Final = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3_600.0, math.inf)
"""Upper bounds, in seconds, of the histogram of delays."""


@dataclass(frozen=True, slots=True)
class WorkDone:
    """A piece of finished work: a summary, a delivery or a purge (`kind`), the model or rule that did it, its outcome,
    and the time since it was due."""

    kind: str
    maker: str
    outcome: str
    seconds: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class WorkCount:
    """The work of one kind, maker and outcome that was done within `bound` seconds, but not within the bound before."""

    kind: str
    maker: str
    outcome: str
    bound: float
    number: int
    seconds: float
    input_tokens: int
    output_tokens: int
    newest_at: datetime


async def add(connection: Executor, done: WorkDone, number: int = 1) -> None:
    """Count a piece of work, or `number` pieces."""
    await connection.execute(
        "INSERT INTO work_counts AS w (kind, maker, outcome, bound, number, seconds, input_tokens, output_tokens) "
        "VALUES (:kind, :maker, :outcome, :bound, :number, :seconds, :input_tokens, :output_tokens) "
        "ON CONFLICT (kind, maker, outcome, bound) DO UPDATE SET number = w.number + excluded.number, "
        "seconds = w.seconds + excluded.seconds, input_tokens = w.input_tokens + excluded.input_tokens, "
        "output_tokens = w.output_tokens + excluded.output_tokens, newest_at = now()",
        bound=BOUNDS[bisect_left(BOUNDS, done.seconds)],
        number=number,
        **parameters(done),
    )


async def all_counts(database: Database) -> Sequence[WorkCount]:
    """Return all counts: a few rows for each kind of work."""
    rows = await database.fetch(f"SELECT {columns(WorkCount)} FROM work_counts ORDER BY kind, maker, outcome, bound")
    return [decode(WorkCount, row) for row in rows]


# The condition is on the row being updated, so that concurrent reservations cannot both take the last tokens.
_RESERVE: Final = """
INSERT INTO provider_spend AS p (tenant_id, day, spent, reserved, refused)
VALUES (:tenant_id, (now() AT TIME ZONE 'UTC')::date, 0, :tokens, 0)
ON CONFLICT (tenant_id, day) DO UPDATE SET reserved = p.reserved + :tokens
WHERE p.spent + p.reserved + :tokens <= :most
RETURNING day
"""
_REFUSED: Final = """
INSERT INTO provider_spend AS p (tenant_id, day, spent, reserved, refused)
VALUES (:tenant_id, (now() AT TIME ZONE 'UTC')::date, 0, 0, 1)
ON CONFLICT (tenant_id, day) DO UPDATE SET refused = p.refused + 1
"""


async def reserve_tokens(database: Database, tenant_id: UUID, tokens: int, most: int) -> date | None:
    """Reserve tokens of a tenant's daily limit `most`; return the day, None if too few tokens are left."""
    row = None
    if tokens <= most:
        row = await database.fetchrow(_RESERVE, tenant_id=tenant_id, tokens=tokens, most=most)
    if row is None:
        await database.execute(_REFUSED, tenant_id=tenant_id)
        return None
    found: date = row["day"]
    return found


async def settle_tokens(database: Database, tenant_id: UUID, day: date, reserved: int, spent: int) -> None:
    """Replace a request's reservation by its cost, on the day of the reservation."""
    await database.execute(
        "UPDATE provider_spend SET reserved = reserved - :reserved, spent = spent + :spent "
        "WHERE tenant_id = :tenant_id AND day = :day",
        tenant_id=tenant_id,
        day=day,
        reserved=reserved,
        spent=spent,
    )


@dataclass(frozen=True, slots=True)
class TokensToday:
    """Tokens that all tenants have spent and reserved today, and the number of their refused requests."""

    spent: int
    reserved: int
    refused: int


async def tokens_today(database: Database) -> TokensToday:
    """Return the sums of today's rows."""
    row = await database.fetchrow(f"SELECT {columns(TokensToday)} FROM palimpsest_across_spend()")
    return TokensToday(0, 0, 0) if row is None else decode(TokensToday, row)
