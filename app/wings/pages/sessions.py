"""The pages of sessions: all of them, with the health of what serves them, and one of them now.

All: their list, the gateway's newest requests, and the server and workers. One: the room in its window, the content
that would go next, its bill, and the signs of damage.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from app.core.errors import ContextError, StoreUnavailable
from app.core.lexicon.identifiers import is_recall_tool
from app.core.log.segments import is_line, session_of
from app.core.policy.policy import parse_policy
from app.core.record.evictions import Eviction, eviction_of, new_evictions
from app.core.record.over_time import Need, by_rule, recalled_seqs, repeated_calls
from app.core.record.reading import window_figures
from app.core.tokens.models import UNKNOWN, profile
from app.runtime.wing import ForwardedCall, ForwardedCalls
from app.store import event_log, jobs, sessions
from app.store.engine import Database
from app.store.event_log import SessionLog
from app.store.ids import session_key
from app.store.migrate import revisions
from app.store.rows import decode
from app.store.session_filter import has_prefix
from app.wings.pages import store
from app.wings.pages.calls import find_ledger, request_blocks
from app.wings.pages.page import Pages, Visit
from app.wings.pages.store import EVENTS_MAX, SessionSearch, call_place, find_damage, names_of, results_of, view_names

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
    """Show the newest requests through the gateway, and why some were forwarded without a context."""
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


LARGEST: Final = 10
GOING_MAX: Final = 5
_TEXT_CHARS: Final = 300
_BLOCK_PAGES_MAX: Final = 3
_CALLS: Final = 10
_LINES_MAX: Final = 50
PLANNED_MAX: Final = 1_000
REDUCED_MAX: Final = 20_000
"""Numbers of events without a summary up to which the next call, and its reduction, are planned: more take too long."""


@pages.page("/ui/sessions/{sid}", "window.html")
async def show_window(visit: Visit) -> Mapping[str, object]:
    """Show the window of the view's last call, the events since then, and the content that would go next."""
    path = visit.path
    session = await visit.api.get(path)
    calls = (await visit.api.get(f"{path}/calls", view=visit.view, limit=_CALLS))["items"]
    values = {
        "session": session,
        "call": calls[0] if calls else None,
        "reported": next((call for call in calls if call["input_tokens"] is not None), None),
        "views": await view_names(visit.database, visit.ref),
        "lines": (await visit.api.get(f"/v1/sessions/{visit.session}/lines", limit=_LINES_MAX))["items"],
        "runs": (await visit.api.get(f"{path}/compactions", limit=1))["items"],
    }
    if not calls:
        return values
    call = calls[0]
    again = await visit.api.get(f"{path}/calls/{call['call_id']}/context")
    blocks = await request_blocks(visit, call["call_id"], _TEXT_CHARS, _BLOCK_PAGES_MAX)
    named = call["policy"]
    stored = await visit.api.get(f"/v1/policies/{named['name']}", version=named["version"])
    policy = parse_policy(stored["policy"])
    log = SessionLog(visit.ref.session_id)
    heads = [await event_log.tokens_through(visit.database, log, seq) for seq in (call["head"], session["head"])]
    learned = again["tokens"]["calibration"]
    since = round((heads[1] - heads[0]) * (learned["ratio"] if learned else 1))
    return values | {
        "number": (await call_place(visit.database, visit.ref, visit.view, call["call_id"])).number,
        "tokens": again["tokens"],
        "figures": window_figures(again["tokens"], blocks, policy, since),
        "largest": sorted(blocks, key=lambda block: -block["tokens"])[:LARGEST],
        "blocks": len(blocks),
        "cache": again["cache"],
        "preview": None,
        "reduction": None,
        "infeasible": None,
        "going": (),
        **await _next(visit, call, again),
    }


async def _next(visit: Visit, call: Mapping[str, Any], again: Mapping[str, Any]) -> Mapping[str, object]:
    """Return the preview of the next context, and the content that it, or a reduction, would leave out.

    For a long log there is no preview but `reduction`, the next reduction, which takes less time, and for a longer one
    neither. `infeasible` is the reason for which no context can be made.
    """
    covered = again["summaries"][-1]["to_seq"] if again["summaries"] else 0
    if call["head"] - covered > REDUCED_MAX:
        return {}
    try:
        if call["head"] - covered > PLANNED_MAX:
            found = await visit.api.get(f"{visit.path}/next-evictions", view=visit.view, limit=GOING_MAX)
            return {"reduction": found, "going": [eviction_of(row) for row in found["evictions"]]}
        asked, path = {"view": visit.view, "format": call["format"]}, f"{visit.path}/context:preview"
        preview = await visit.api.post(path, asked)
        reduced = preview if preview["cause"] else await visit.api.post(path, {**asked, "force": True})
    except ContextError as error:
        return {"infeasible": error.detail}
    return {"preview": preview, "reduced": reduced, "going": _largest(again["evictions"], reduced["evictions"])}


def _largest(before: Iterable[Mapping[str, Any]], after: Iterable[Mapping[str, Any]]) -> list[Eviction]:
    """Return the evictions that only the later context has and that save most."""
    new = new_evictions([eviction_of(row) for row in before], [eviction_of(row) for row in after])
    return sorted((row for row in new if row.tokens_saved), key=lambda row: -row.tokens_saved)[:GOING_MAX]


EPOCHS_SHOWN: Final = 100
RECALLS_READ: Final = 20
"""Number of recalls whose results are read, the newest."""
BATCH: Final = 250
CALLS_BYTES_MAX: Final = 2_000_000
"""Events of a request for tool calls, and bytes of tool calls after which no older ones are requested."""
BAR: Final = 200.0
"""The width of a bar of the largest figure."""


@pages.page("/ui/sessions/{sid}/money", "money.html")
async def show_money(visit: Visit) -> Mapping[str, object]:
    """Show what a view's calls cost against an append-only context, what summaries cost, and the signs of damage."""
    session, ledger = await visit.api.get(visit.path), await find_ledger(visit)
    runs = (await visit.api.get(f"{visit.path}/compactions", limit=1000))["items"]
    summaries = (await visit.api.get(f"{visit.path}/summaries", limit=1000))["items"]
    calls, first = await _tool_calls(visit, session["head"])
    recalled = await find_damage(visit.database, visit.ref, visit.view, await _recalls(visit, calls))
    again = await find_damage(visit.database, visit.ref, visit.view, await _repeats(visit, calls))
    epochs = [] if ledger is None else list(reversed(ledger["epochs"]))[:EPOCHS_SHOWN]
    return {
        "ledger": ledger,
        "epochs": epochs,
        "scale": bar_scale([one["net"] for one in epochs]),
        "spend": summary_spend(runs, summaries),
        "partial_runs": len(runs) == 1000,
        "first": first,
        "damage": [("recalled", recalled, by_rule(recalled)), ("again", again, by_rule(again))],
    }


def bar_scale(values: Sequence[float]) -> float:
    """Return the width of a bar for a unit, so that the largest of these values has a bar of BAR."""
    return BAR / max(1.0, *(abs(value) for value in values), 1.0)


def summary_spend(
    runs: Sequence[Mapping[str, Any]], summaries: Sequence[Mapping[str, Any]]
) -> dict[str, Mapping[str, int]]:
    """Return the spend on summaries by their author, a model or `extractive`: runs, summaries, and tokens of each kind.

    `read` are tokens that summarizers read; a run is its summaries' author's. `written` are those of the summaries.
    """
    author = {one["id"]: one["model"] or one["summarizer"] for one in summaries}
    found: dict[str, dict[str, int]] = {}
    for one in summaries:
        sums = found.setdefault(author[one["id"]], {"runs": 0, "read": 0, "summaries": 0, "written": 0})
        sums["summaries"] += 1
        sums["written"] += one["tokens"]
    for run in runs:
        names = {author[id] for id in run["summaries"] if id in author}
        for name in sorted(names)[:1]:
            found[name]["runs"] += 1
            found[name]["read"] += run["tokens_read"]
    return dict(sorted(found.items()))


async def _tool_calls(visit: Visit, head: int) -> tuple[list[Mapping[str, Any]], int]:
    """Return the tool calls among the newest events, and the first seq that was searched."""
    found: list[Mapping[str, Any]] = []
    first, read = head + 1, 0
    while first > max(1, head + 1 - EVENTS_MAX) and read < CALLS_BYTES_MAX:
        after = max(0, first - 1 - BATCH)
        body = await visit.api.read(f"{visit.path}/events", type="tool.call", after=after, limit=BATCH)
        found = [call for call in json.loads(body)["items"] if call["seq"] < first] + found
        first, read = after + 1, read + len(body)
    return found, first


async def _recalls(visit: Visit, calls: Sequence[Mapping[str, Any]]) -> list[Need]:
    """Return the originals that the recall tool returned, for its newest calls in the log."""
    asked = [call["seq"] for call in calls if is_recall_tool(call.get("tool"))][-RECALLS_READ:]
    results = await results_of(visit.database, visit.ref, asked)
    needs = []
    for at in asked:
        if at in results:
            result = await visit.api.get(f"{visit.path}/events/{results[at]}")
            needs += [(seq, at) for seq in recalled_seqs(result.get("content"))]
    tools = await names_of(visit.database, visit.ref, {seq for seq, _ in needs})
    return [Need(seq, at, tools[seq]) for seq, at in needs if seq in tools]


async def _repeats(visit: Visit, calls: Sequence[Mapping[str, Any]]) -> list[Need]:
    """Return the results of tool calls that were made once more."""
    pairs = list(repeated_calls(call for call in calls if not is_recall_tool(call.get("tool"))))
    results = await results_of(visit.database, visit.ref, [earlier for earlier, _, _ in pairs])
    return [Need(results[earlier], later, tool) for earlier, later, tool in pairs if earlier in results]
