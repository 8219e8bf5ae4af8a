"""The pages about many sessions: their list, the gateway's newest requests, and the health of server and workers."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from app.core.errors import StoreUnavailable
from app.core.log.segments import is_line, session_of
from app.core.tokens.models import UNKNOWN, profile
from app.runtime.wing import ForwardedCall, ForwardedCalls
from app.store import jobs, sessions
from app.store.engine import Database
from app.store.ids import session_key
from app.store.migrate import revisions
from app.store.rows import decode
from app.store.session_filter import has_prefix
from app.wings.pages import store
from app.wings.pages.page import Pages, Visit
from app.wings.pages.store import SessionSearch

pages = Pages()
PAGE: Final = 50
PAGES_MAX: Final = 200
SINCE: Final = {"hour": timedelta(hours=1), "day": timedelta(days=1), "week": timedelta(days=7)}
FILTERS: Final = ("find", "model", "since", "troubled", "order")
FIGURES: Final = {"searched": store.SEARCHED_MAX, "troubled": store.TROUBLED_MAX, "counted": store.COUNTED_MAX}


def spark(estimates: Sequence[int], targets: Sequence[int], width: int = 120, height: int = 22) -> str:
    """Return the points of a line through estimates as shares of their targets; 1 is 3 units below the top."""
    step = width / max(1, len(estimates) - 1)
    shares = [min(1.1, estimate / max(1, target)) for estimate, target in zip(estimates, targets, strict=True)]
    return " ".join(f"{number * step:.1f},{height - share * (height - 3):.1f}" for number, share in enumerate(shares))


def starter_of(name: str) -> str:
    """Return the name of the session whose sub-agent one of this name would be; "" if it would be none's."""
    return name.rpartition(":")[0] or name.rpartition(".agent-")[0]


@pages.page("/ui/", "sessions.html")
async def list_sessions_page(visit: Visit) -> Mapping[str, object]:
    """Show the sessions that the reader's key can access, newest first unless another order is asked for."""
    database, tenant, may = visit.request.state.services.database, visit.who.tenant_id, visit.who.may_access
    asked = {name: visit.query(name).strip() for name in FILTERS}
    since = SINCE.get(asked["since"])
    search = SessionSearch(
        prefix=visit.who.session_prefix,
        find=asked["find"],
        model=asked["model"],
        since=None if since is None else datetime.now(UTC) - since,
        troubled=bool(asked["troubled"]),
        by_change=asked["order"] == "changed",
    )
    number = visit.number("page", 1, least=1, most=PAGES_MAX)
    keys = await store.find_sessions(database, tenant, search, limit=PAGE + 1, skip=(number - 1) * PAGE)
    rows = await sessions.with_keys(database, tenant, keys[:PAGE])
    listed = {session_of(row.external_id): row for row in rows}
    starters = [session_key(tenant, one) for one in map(starter_of, listed) if one and may(one)]
    known = {session_of(row.external_id) for row in await sessions.with_keys(database, tenant, starters)}
    forks = {
        name: row.parent[0]
        for name, row in listed.items()
        if row.parent is not None and not is_line(row.external_id) and may(row.parent[0])
    }
    return {
        **FIGURES,
        "sessions": listed,
        "calls": await store.recent_calls(database, tenant, [row.session_id for row in rows]),
        "forks": forks,
        "starters": {name: starter_of(name) for name in listed if starter_of(name) in known},
        "asked": asked,
        "number": number,
        "following": number + 1 if len(keys) > PAGE and number < PAGES_MAX else None,
        "spark": spark,
    }


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
    counts = await jobs.work_counts(visit.database)
    return {
        "ready": ready,
        "queues": await jobs.queues(visit.database),
        "open": decode(OpenRuns, opened),
        "troubled": [decode(TroubledRun, row) for row in troubled],
        "schema": revisions()[-1],
        "newest": max((one.newest_at for one in counts if one.kind == "summary"), default=None),
    }
