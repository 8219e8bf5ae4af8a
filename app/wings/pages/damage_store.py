"""Reads for the signs of damage: results of tool calls, and the decisions that had left events out."""

from collections.abc import Iterable, Sequence
from typing import Final

from app.core.audit.event_life import Damage, Need
from app.store import event_log
from app.store.engine import Database
from app.store.event_log import SessionLog
from app.store.ids import SessionRef
from app.store.rows import decode

EVENTS_MAX: Final = 4_000
"""Number of events that are searched for signs, the newest."""
PAIRS_MAX: Final = 100
"""Number of signs whose eviction is looked up, the newest."""


_RESULTS: Final = """
SELECT e.call_seq, e.seq FROM unnest(:ids::uuid[], :firsts::bigint[], :lasts::bigint[]) AS part (id, first, last)
JOIN events e ON e.session_id = part.id AND e.seq BETWEEN part.first AND part.last AND e.tenant_id = :tenant_id
WHERE e.call_seq = ANY(:calls::bigint[])
"""


async def results_of(database: Database, ref: SessionRef, calls: Sequence[int]) -> dict[int, int]:
    """Return the seqs of the results of tool calls, by the calls' seqs."""
    parts = await event_log.owners(database, SessionLog(ref.session_id))
    ids, firsts, lasts = zip(*((part.session_id, part.from_seq, part.to_seq) for part in parts), strict=True)
    values = {"ids": list(ids), "firsts": list(firsts), "lasts": list(lasts), "calls": list(calls)}
    rows = await database.fetch(_RESULTS, tenant_id=ref.tenant_id, **values)
    return {row["call_seq"]: row["seq"] for row in rows}


async def names_of(database: Database, ref: SessionRef, seqs: Iterable[int]) -> dict[int, str]:
    """Return the tools of these events, or their types if they have none, by seq."""
    rows = await event_log.read(database, SessionLog(ref.session_id), "seq, coalesce(tool, type) AS name", 1, 0, seqs)
    return {row["seq"]: row["name"] for row in rows}


# The epoch that was current when event `at` was appended is the last one opened before it.
_DAMAGE: Final = """
SELECT DISTINCT ON (need.at, need.seq) need.seq, need.at, need.tool, e.epoch, r ->> 'disposition' AS disposition,
    r ->> 'reducer' AS reducer, r ->> 'reason' AS reason
FROM unnest(:seqs::bigint[], :ats::bigint[], :tools::text[]) AS need (seq, at, tool)
CROSS JOIN LATERAL (
    SELECT epoch, evictions, evicted FROM epochs
    WHERE session_id = :session_id AND tenant_id = :tenant_id AND view = :view AND head < need.at
    ORDER BY epoch DESC LIMIT 1) e
CROSS JOIN LATERAL json_array_elements(e.evictions) r
WHERE e.evicted @> need.seq AND need.seq BETWEEN (r ->> 'from_seq')::bigint AND (r ->> 'to_seq')::bigint
ORDER BY need.at DESC, need.seq
"""


async def find_damage(database: Database, ref: SessionRef, view: str, needs: Iterable[Need]) -> list[Damage]:
    """Return the needs whose event a view had left out by then, of the newest PAIRS_MAX; newest first."""
    newest = sorted(needs, key=lambda need: need.at)[-PAIRS_MAX:]
    values = {
        "seqs": [need.seq for need in newest],
        "ats": [need.at for need in newest],
        "tools": [need.tool for need in newest],
    }
    return [decode(Damage, row) for row in await database.fetch(_DAMAGE, **ref._asdict(), view=view, **values)]
