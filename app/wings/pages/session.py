"""A session now: the room in its window, and the content that would go next; its bill, and the signs of damage."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from app.core.audit.event_life import Need, by_rule, recalled_seqs, repeated_calls
from app.core.audit.moment import new_evictions
from app.core.audit.reading import window_figures
from app.core.errors import ContextError
from app.core.lexicon.identifiers import is_recall_tool
from app.core.policy.policy import parse_policy
from app.core.record.evictions import Eviction, eviction_of
from app.store import event_log
from app.store.event_log import SessionLog
from app.wings.pages.calls import find_ledger, request_blocks
from app.wings.pages.page import Pages, Visit
from app.wings.pages.store import EVENTS_MAX, call_place, find_damage, names_of, results_of, view_names

pages = Pages()
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
