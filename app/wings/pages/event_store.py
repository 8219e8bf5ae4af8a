"""Reads of an event's fate in all calls of a view, and of the other half of a tool's use."""

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from app.core.audit.event_life import StateRun
from app.store import event_log
from app.store.engine import Database
from app.store.event_log import SessionLog
from app.store.ids import SessionRef
from app.store.rows import decode

CHANGES_MAX: Final = 40
"""Number of changes that are read, the newest."""
NEARBY: Final = 500
"""Number of events on each side among which the other half of a tool's use is searched."""


# An event is shown otherwise if the rows of its epoch that cover it differ, if the policy does, whose authors and types
# select events, or if it was erased. Rows of other types' stubs may cover it too: they divide a run, and no more.
_RUNS: Final = """
WITH decided AS (
    SELECT epoch, count(*) FILTER (WHERE cause = 'redaction') OVER (ORDER BY epoch) AS erasures,
        CASE WHEN evicted @> :seq::bigint THEN (
            SELECT string_agg(DISTINCT concat_ws(' ', r ->> 'disposition', r ->> 'reducer', r ->> 'reason'), '; ')
            FROM json_array_elements(evictions) r
            WHERE (r ->> 'from_seq')::bigint <= :seq AND (r ->> 'to_seq')::bigint >= :seq) END AS decision
    FROM epochs WHERE session_id = :session_id AND tenant_id = :tenant_id AND view = :view
), numbered AS (
    SELECT call_id, epoch, head, policy_name, policy_version, row_number() OVER oldest AS number,
        lag(call_id) OVER oldest AS before
    FROM model_calls WHERE session_id = :session_id AND tenant_id = :tenant_id AND view = :view
    WINDOW oldest AS (ORDER BY call_id)
), since AS (
    SELECT call_id, before, number, concat_ws(' ', policy_name, policy_version, erasures, decision) AS state
    FROM numbered LEFT JOIN decided USING (epoch) WHERE head >= :seq
), compared AS (
    SELECT *, lag(state) OVER oldest AS former, lag(number) OVER oldest AS previous, max(number) OVER () AS newest
    FROM since WINDOW oldest AS (ORDER BY number)
)
SELECT call_id, before, number AS first, coalesce(lead(previous) OVER (ORDER BY number), newest) AS last
FROM compared WHERE former IS DISTINCT FROM state ORDER BY number DESC LIMIT :limit
"""


async def state_runs(database: Database, ref: SessionRef, view: str, seq: int) -> list[StateRun]:
    """Return the runs of a view's calls since an event was logged, oldest first; of many, the last CHANGES_MAX."""
    rows = await database.fetch(_RUNS, **ref._asdict(), view=view, seq=seq, limit=CHANGES_MAX)
    return [decode(StateRun, row) for row in reversed(rows)]


@dataclass(frozen=True, slots=True)
class PlacedCall:
    """A call of a view, its number in the order of time, and the last event that its context reaches."""

    call_id: UUID
    number: int
    head: int


_PLACED: Final = """
SELECT call_id, head, number FROM (
    SELECT call_id, head, row_number() OVER (ORDER BY call_id) AS number FROM model_calls
    WHERE session_id = :session_id AND tenant_id = :tenant_id AND view = :view) placed
WHERE :wanted IN (call_id::text, number::text)
"""


async def placed_call(database: Database, ref: SessionRef, view: str, wanted: str) -> PlacedCall | None:
    """Return the call with a number or an id; None if the view has none."""
    row = await database.fetchrow(_PLACED, **ref._asdict(), view=view, wanted=wanted)
    return None if row is None else decode(PlacedCall, row)


async def counterpart(database: Database, ref: SessionRef, seq: int) -> int | None:
    """Return the seq of a tool call's result, or of a result's call, if it is one of the events nearby."""
    nearby = (max(1, seq - NEARBY), seq + NEARBY)
    rows = await event_log.read(database, SessionLog(ref.session_id), "seq, call_seq", *nearby)
    pairs = {row["call_seq"]: row["seq"] for row in rows if row["call_seq"]}
    return pairs.get(seq) or next((call for call, result in pairs.items() if result == seq), None)
