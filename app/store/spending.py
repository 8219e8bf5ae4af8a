"""What tenants' summaries cost by the day: one row a tenant and day, which all processes share."""

from dataclasses import dataclass
from datetime import date
from typing import Final
from uuid import UUID

from app.store.engine import Database

# The row as it is updated decides, so that two at once cannot both take what is left for one.
_RESERVE: Final = """
INSERT INTO provider_spend AS p (tenant_id, day, spent, reserved, refused)
SELECT $1, (now() AT TIME ZONE 'UTC')::date, 0, $2, 0 WHERE $2::bigint <= $3::bigint
ON CONFLICT (tenant_id, day) DO UPDATE SET reserved = p.reserved + $2 WHERE p.spent + p.reserved + $2 <= $3
RETURNING day
"""
_REFUSED: Final = """
INSERT INTO provider_spend AS p (tenant_id, day, spent, reserved, refused)
VALUES ($1, (now() AT TIME ZONE 'UTC')::date, 0, 0, 1)
ON CONFLICT (tenant_id, day) DO UPDATE SET refused = p.refused + 1
"""


async def reserve(database: Database, tenant_id: UUID, tokens: int, most: int) -> date | None:
    """Reserve tokens of a tenant's day, whose spending must stay within `most`; the day, None when that cannot be."""
    row = await database.fetchrow(_RESERVE, tenant_id, tokens, most)
    if row is None:
        await database.execute(_REFUSED, tenant_id)
        return None
    found: date = row["day"]
    return found


async def settle(database: Database, tenant_id: UUID, day: date, reserved: int, spent: int) -> None:
    """Take back what was reserved for a request and charge what it has cost, on the day it was reserved on."""
    await database.execute(
        "UPDATE provider_spend SET reserved = reserved - $3, spent = spent + $4 WHERE tenant_id = $1 AND day = $2",
        tenant_id,
        day,
        reserved,
        spent,
    )


@dataclass(frozen=True, slots=True)
class Today:
    """What all tenants have spent today, in tokens, and how many of their requests were not made."""

    spent: int
    reserved: int
    refused: int


async def today(database: Database) -> Today:
    """The sums of today's rows."""
    row = await database.fetchrow("SELECT spent, reserved, refused FROM palimpsest_across_spend()")
    return Today(0, 0, 0) if row is None else Today(row["spent"], row["reserved"], row["refused"])
