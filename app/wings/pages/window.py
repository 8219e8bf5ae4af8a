"""The page of a session's window now: the room that remains, what fills the rest, and what would go next."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from app.core.audit.moment import new_evictions
from app.core.audit.reading import window_figures
from app.core.errors import ContextError
from app.core.policy.policy import parse_policy
from app.core.record.evictions import Eviction, eviction_of
from app.store import event_log
from app.store.event_log import SessionLog
from app.wings.pages.call import request_blocks
from app.wings.pages.page import Pages, Visit
from app.wings.pages.store import call_place, view_names

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
