"""The list of sessions, with search, filters, and the course of each one's newest calls."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from app.core.log.segments import is_line, session_of
from app.store import sessions
from app.store.ids import session_key
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
