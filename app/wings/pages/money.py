"""The page of a session's bill, and of the signs that leaving content out did damage."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from app.core.audit.event_life import Need, by_rule, recalled_seqs, repeated_calls
from app.core.lexicon.identifiers import is_recall_tool
from app.wings.pages.page import Pages, Visit
from app.wings.pages.store import EVENTS_MAX, find_damage, names_of, results_of
from app.wings.pages.strata import find_ledger

pages = Pages()

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
