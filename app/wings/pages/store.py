"""Reads of figures that only the pages show. Each statement names the tenant and runs within its row-level security."""

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from app.store.engine import Database
from app.store.ids import SessionRef


@dataclass(frozen=True, slots=True)
class CallPlace:
    """The place of a call among those of its view on its line, counted from 1 in order of time."""

    number: int
    total: int
    previous: UUID | None
    following: UUID | None


_PLACE: Final = """
SELECT count(*) FILTER (WHERE call_id <= :call_id) AS number, count(*) AS total,
       max(call_id::text) FILTER (WHERE call_id < :call_id) AS previous,
       min(call_id::text) FILTER (WHERE call_id > :call_id) AS following
FROM model_calls WHERE session_id = :session_id AND tenant_id = :tenant_id AND view = :view
"""

_NUMBERED: Final = """
SELECT call_id FROM model_calls WHERE session_id = :session_id AND tenant_id = :tenant_id AND view = :view
ORDER BY call_id LIMIT 1 OFFSET :before
"""


async def call_place(database: Database, ref: SessionRef, view: str, call_id: UUID) -> CallPlace:
    """Return the place of a call, whether it exists or not."""
    (row,) = await database.fetch(_PLACE, **ref._asdict(), view=view, call_id=call_id)
    previous, following = (None if row[name] is None else UUID(row[name]) for name in ("previous", "following"))
    return CallPlace(row["number"], row["total"], previous, following)


async def find_call(database: Database, ref: SessionRef, view: str, number: int) -> UUID | None:
    """Return the id of a view's call with this number, counted from 1 in order of time; None if there is none."""
    row = await database.fetchrow(_NUMBERED, **ref._asdict(), view=view, before=number - 1)
    return None if row is None else row["call_id"]


async def view_names(database: Database, ref: SessionRef) -> list[str]:
    """Return the names of the views that a line was read through, at most 50."""
    statement = (
        "SELECT view FROM views WHERE session_id = :session_id AND tenant_id = :tenant_id ORDER BY view LIMIT 50"
    )
    return [row["view"] for row in await database.fetch(statement, **ref._asdict())]
