"""Tokens spent on tenants' summaries: one row per tenant and day, shared by all processes."""

from dataclasses import dataclass
from datetime import date
from typing import Final
from uuid import UUID

from app.store.engine import Database
from app.store.rows import columns, decode

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


async def reserve(database: Database, tenant_id: UUID, tokens: int, most: int) -> date | None:
    """Reserve tokens of a tenant's daily limit `most`; return the day, None if too few tokens are left."""
    row = None
    if tokens <= most:
        row = await database.fetchrow(_RESERVE, tenant_id=tenant_id, tokens=tokens, most=most)
    if row is None:
        await database.execute(_REFUSED, tenant_id=tenant_id)
        return None
    found: date = row["day"]
    return found


async def settle(database: Database, tenant_id: UUID, day: date, reserved: int, spent: int) -> None:
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
class Today:
    """Tokens that all tenants have spent and reserved today, and the number of their refused requests."""

    spent: int
    reserved: int
    refused: int


async def today(database: Database) -> Today:
    """Return the sums of today's rows."""
    row = await database.fetchrow(f"SELECT {columns(Today)} FROM palimpsest_across_spend()")
    return Today(0, 0, 0) if row is None else decode(Today, row)
