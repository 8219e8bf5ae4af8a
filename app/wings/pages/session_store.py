"""Reads for the list of sessions. Each statement names the tenant and runs within its row-level security.

No index serves searches by a part of a name, a model or the last change: they look at the newest sessions only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from app.core.assembly.inputs import OBSERVED_VIEW
from app.store.engine import Database
from app.store.rows import decode, parameters
from app.store.session_filter import has_prefix

SEARCHED_MAX: Final = 50_000
"""The newest sessions, or lines of sessions, in which a search looks."""
TROUBLED_MAX: Final = 10_000
"""The newest calls of the tenant in which a search looks for failed ones."""
COUNTED_MAX: Final = 1_000
RECENT: Final = 40


@dataclass(frozen=True, slots=True)
class SessionSearch:
    """Conditions that must all hold, and the order; a line of a session counts as the session."""

    prefix: str = ""
    find: str = ""
    model: str = ""
    since: datetime | None = None
    troubled: bool = False
    by_change: bool = False


_FOUND: Final = f"""
SELECT coalesce(root, session_id) AS id FROM (
    SELECT session_id, root, external_id, model, created_at, updated_at FROM sessions
    WHERE tenant_id = :tenant_id AND {{named}} AND (:scans OR root IS NULL)
    ORDER BY created_at DESC, session_id DESC LIMIT :most) s
WHERE strpos(lower(external_id), lower(:find)) > 0 AND (:model = '' OR model = :model)
  AND (:since::timestamptz IS NULL OR updated_at >= :since) AND (NOT :troubled OR session_id IN (
    SELECT session_id FROM (
        SELECT session_id, overflow, error IS NOT NULL AS failed FROM model_calls WHERE tenant_id = :tenant_id
        ORDER BY created_at DESC, call_id DESC LIMIT {TROUBLED_MAX}) c WHERE overflow OR failed))
GROUP BY 1 ORDER BY CASE WHEN :by_change THEN max(updated_at) ELSE min(created_at) END DESC, 1 DESC
LIMIT :limit OFFSET :skip
"""


async def find_sessions(
    database: Database, tenant_id: UUID, search: SessionSearch, *, limit: int, skip: int
) -> Sequence[UUID]:
    """Return the keys of sessions in the order of the search."""
    named = has_prefix("external_id", ":prefix") if search.prefix else ":prefix::text = ''"
    scans = bool(search.find or search.model or search.since or search.troubled or search.by_change)
    values = {**parameters(search), "scans": scans, "most": SEARCHED_MAX if scans else limit + skip}
    sql = _FOUND.format(named=named)
    return [row["id"] for row in await database.fetch(sql, tenant_id=tenant_id, limit=limit, skip=skip, **values)]


@dataclass(frozen=True, slots=True)
class RecentCalls:
    """The newest calls of a line, up to RECENT, oldest first, and the number of its calls, counted to COUNTED_MAX.

    Observed calls are not among them, since their contexts were not sent.
    """

    estimates: Sequence[int]
    targets: Sequence[int]
    failed: int
    last_at: datetime | None
    number: int


_RECENT: Final = f"""
SELECT l.id, c.*, n.number FROM unnest(:keys::uuid[]) AS l(id) CROSS JOIN LATERAL (
    SELECT coalesce(array_agg(estimate ORDER BY call_id), '{{}}') AS estimates,
           coalesce(array_agg(target ORDER BY call_id), '{{}}') AS targets, max(created_at) AS last_at,
           count(*) FILTER (WHERE overflow OR failed) AS failed
    FROM (SELECT call_id, estimate, target, created_at, overflow, error IS NOT NULL AS failed FROM model_calls
          WHERE session_id = l.id AND tenant_id = :tenant_id AND view <> '{OBSERVED_VIEW}'
          ORDER BY call_id DESC LIMIT {RECENT}) r) c
CROSS JOIN LATERAL (SELECT count(*) AS number FROM (
    SELECT FROM model_calls WHERE session_id = l.id AND tenant_id = :tenant_id AND view <> '{OBSERVED_VIEW}'
    LIMIT {COUNTED_MAX}) r) n
"""


async def recent_calls(database: Database, tenant_id: UUID, keys: Sequence[UUID]) -> Mapping[UUID, RecentCalls]:
    """Return the newest calls of lines by their keys."""
    rows = await database.fetch(_RECENT, keys=list(keys), tenant_id=tenant_id)
    return {row["id"]: decode(RecentCalls, row) for row in rows}
