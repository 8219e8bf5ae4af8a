"""The pages for whoever runs the server: the gateway's newest requests, and the health of server and workers."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from app.core.errors import StoreUnavailable
from app.core.tokens.models import UNKNOWN, profile
from app.runtime.wing import ForwardedCall, ForwardedCalls
from app.store import jobs, work_counts
from app.store.engine import Database
from app.store.ids import session_key
from app.store.migrate import revisions
from app.store.rows import decode
from app.store.session_filter import has_prefix
from app.wings.pages.page import Pages, Visit

pages = Pages()
FAILED_RUNS: Final = 20

_WINDOWS: Final = """
SELECT m.call_id, m.model, m.window_tokens FROM unnest(:sessions::uuid[], :calls::uuid[]) AS made (session_id, call_id)
JOIN model_calls m USING (session_id, call_id) WHERE m.tenant_id = :tenant_id
"""


@pages.page("/ui/gateway", "gateway.html")
async def show_gateway(visit: Visit) -> Mapping[str, object]:
    """Show the newest requests through the gateway, and why some were forwarded unchanged."""
    remembered: ForwardedCalls = visit.request.state.services.by_class[ForwardedCalls]
    calls = [call for call in remembered.newest(visit.who.tenant_id) if visit.who.may_access(call.session or "")]
    return {
        "since": remembered.since,
        "calls": calls,
        "modes": Counter(call.mode for call in calls),
        "reasons": Counter(call.reason for call in calls if call.reason).most_common(),
        "windows": await _windows(visit.database, visit.who.tenant_id, calls),
    }


async def _windows(
    database: Database, tenant_id: UUID, calls: Sequence[ForwardedCall]
) -> Mapping[UUID, tuple[str | None, int | None, bool]]:
    """Return the models of recorded calls, their windows, and whether these are the models' known ones, by call."""
    made = [(session_key(tenant_id, call.line), call.call_id) for call in calls if call.line and call.call_id]
    values = {"sessions": [session for session, _ in made], "calls": [id for _, id in made]}
    rows = await database.fetch(_WINDOWS, tenant_id=tenant_id, **values)
    known = {model: profile(model) is not UNKNOWN for model in {row["model"] for row in rows}}
    return {row["call_id"]: (row["model"], row["window_tokens"], known[row["model"]]) for row in rows}


@dataclass(frozen=True, slots=True)
class OpenRuns:
    """A tenant's compaction runs that have not ended, and the time since which the oldest waits."""

    scheduled: int
    running: int
    oldest: datetime | None


@dataclass(frozen=True, slots=True)
class TroubledRun:
    """A compaction run that failed, or was postponed."""

    session: str
    state: str
    reason: str
    attempts: int
    error: str | None
    created_at: datetime


_OPEN: Final = """
SELECT count(*) FILTER (WHERE c.state = 'scheduled') AS scheduled,
    count(*) FILTER (WHERE c.state = 'running') AS running, min(c.created_at) AS oldest
FROM compactions c JOIN sessions s ON s.session_id = c.session_id
WHERE c.tenant_id = :tenant_id AND c.state IN ('scheduled', 'running') AND {named}
"""
_TROUBLED: Final = """
SELECT s.external_id AS session, c.state, c.reason, c.attempts, c.error, c.created_at
FROM compactions c JOIN sessions s ON s.session_id = c.session_id
WHERE c.tenant_id = :tenant_id AND (c.state = 'failed' OR c.state = 'scheduled' AND c.attempts > 0) AND {named}
ORDER BY c.created_at DESC LIMIT :limit
"""


@pages.page("/ui/health", "health.html")
async def show_health(visit: Visit) -> Mapping[str, object]:
    """Show whether the server can serve, the workers' queue, and the reader's own compactions that failed."""
    try:
        ready = await visit.api.get("/readyz")
    except StoreUnavailable as error:
        return {"ready": None, "detail": error.detail}
    named = has_prefix("s.external_id", ":prefix") if visit.who.session_prefix else ":prefix::text = ''"
    values = {"tenant_id": visit.who.tenant_id, "prefix": visit.who.session_prefix}
    [opened] = await visit.database.fetch(_OPEN.format(named=named), **values)
    troubled = await visit.database.fetch(_TROUBLED.format(named=named), **values, limit=FAILED_RUNS)
    counts = await work_counts.all_counts(visit.database)
    return {
        "ready": ready,
        "queues": await jobs.queues(visit.database),
        "open": decode(OpenRuns, opened),
        "troubled": [decode(TroubledRun, row) for row in troubled],
        "schema": revisions()[-1],
        "newest": max((one.newest_at for one in counts if one.kind == "summary"), default=None),
    }
