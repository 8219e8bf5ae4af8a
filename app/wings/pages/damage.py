"""Signs that a context lost what the agent still needed: originals it recalled, and tool calls that it made again."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from app.store import event_log
from app.store.engine import Database
from app.store.event_log import SessionLog
from app.store.ids import SessionRef
from app.store.rows import decode

EVENTS_MAX: Final = 4_000
"""Number of events that are searched for signs, the newest."""
PAIRS_MAX: Final = 100
"""Number of signs whose eviction is looked up, the newest."""


@dataclass(frozen=True, slots=True)
class Need:
    """An event that was needed again by the time of event `at`, which recalled it or called its tool once more."""

    seq: int
    at: int
    tool: str


@dataclass(frozen=True, slots=True)
class Damage:
    """An event that was needed again after it had been left out, and the decision that left it out."""

    seq: int
    at: int
    tool: str
    epoch: int
    disposition: str
    reducer: str
    reason: str


def repeated_calls(calls: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, int, str]]:
    """Yield each tool call that repeats an earlier one: the seq of the latest equal call, its own, and the tool.

    `calls` are events as the API returns them, in the order of the log.
    """
    latest: dict[str, int] = {}
    for call in calls:
        key = json.dumps([call.get("tool"), call.get("arguments")], sort_keys=True)
        if key in latest:
            yield latest[key], call["seq"], call.get("tool") or ""
        latest[key] = call["seq"]


def recalled_seqs(content: object) -> list[int]:
    """Return the seqs of the originals in a result of the recall tool; of those the model saw anyway there is none."""
    try:
        found = json.loads(content) if isinstance(content, str) else content
        items = found["items"] if isinstance(found, dict) else []
        return [item["seq"] for item in items if isinstance(item.get("content"), str) and isinstance(item["seq"], int)]
    except (ValueError, KeyError, TypeError, AttributeError):
        return []


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


def by_rule(found: Iterable[Damage]) -> list[tuple[str, str, int]]:
    """Count damage by reducer and tool, the most frequent first."""
    counts = Counter((one.reducer, one.tool) for one in found)
    return [(reducer, tool, number) for (reducer, tool), number in counts.most_common()]
