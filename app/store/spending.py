"""What tenants' summaries cost by the day: one row a tenant and day, which all processes share."""

from dataclasses import dataclass
from datetime import date
from typing import Final
from uuid import UUID

from app.store.engine import Database
from app.store.rows import columns, decode

# The row as it is updated decides, so that two at once cannot both take what is left for one.
_RESERVE: Final = """
INSERT INTO provider_spend AS p (tenant_id, day, spent, reserved, refused)
SELECT :tenant_id, (now() AT TIME ZONE 'UTC')::date, 0, :tokens, 0 WHERE :tokens::bigint <= :most::bigint
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
    """Reserve tokens of a tenant's day, whose spending must stay within `most`; the day, None when that cannot be."""
    row = await database.fetchrow(_RESERVE, tenant_id=tenant_id, tokens=tokens, most=most)
    if row is None:
        await database.execute(_REFUSED, tenant_id=tenant_id)
        return None
    found: date = row["day"]
    return found


async def settle(database: Database, tenant_id: UUID, day: date, reserved: int, spent: int) -> None:
    """Take back what was reserved for a request and charge what it has cost, on the day it was reserved on."""
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
    """What all tenants have spent today, in tokens, and how many of their requests were not made."""

    spent: int
    reserved: int
    refused: int


async def today(database: Database) -> Today:
    """The sums of today's rows."""
    row = await database.fetchrow(f"SELECT {columns(Today)} FROM palimpsest_across_spend()")
    return Today(0, 0, 0) if row is None else decode(Today, row)
