"""The calls of a session: their sizes over time, and as a list."""

from collections.abc import Mapping
from typing import Any, Final

from fastapi import Response
from fastapi.responses import RedirectResponse

from app.core.audit.strata import HEIGHT, SOURCES, WIDTH, draw_strata
from app.core.errors import NotFound
from app.wings.pages.page import Pages, Visit
from app.wings.pages.render import address
from app.wings.pages.store import call_place, epoch_causes, epoch_starts, find_call, read_columns

pages = Pages()

LISTED: Final = 100
EPOCHS_LISTED: Final = 100
LEDGER_CALLS: Final = 1_000
"""Newest calls that the ledger covers: more would take a third of a second."""


@pages.page("/ui/sessions/{sid}/strata", "strata.html")
async def show_strata(visit: Visit) -> Mapping[str, object]:
    """Show the sizes of a view's calls over time, and its epochs."""
    await visit.api.get(visit.path)  # raises NotFound
    database, ref = visit.database, visit.ref
    columns = await read_columns(database, ref, visit.view)
    starts = await epoch_starts(database, ref, visit.view)
    ledger = await find_ledger(visit) if starts else None
    return {
        "columns": columns,
        "total": columns[-1].last if columns else 0,
        "chart": draw_strata(columns, starts) if columns else None,
        "width": WIDTH,
        "height": HEIGHT,
        "sources": SOURCES,
        "starts": starts[:EPOCHS_LISTED],
        "unlisted": max(0, len(starts) - EPOCHS_LISTED),
        "prices": {} if ledger is None else {one["epoch"]: one for one in ledger["epochs"]},
    }


async def find_ledger(visit: Visit) -> Mapping[str, Any] | None:
    """Return the ledger of a view's newest calls; None on a server without ledgers."""
    path = f"{visit.path}/ledger"
    found: Mapping[str, Any] | None = await visit.api.find(
        path, view=visit.view, limit=LEDGER_CALLS, newest=LEDGER_CALLS
    )
    return found


@pages.page("/ui/sessions/{sid}/calls", "calls.html")
async def list_calls_page(visit: Visit) -> Mapping[str, object] | Response:
    """List the calls of a view, newest first, or lead to the call with the number of the query."""
    await visit.api.get(visit.path)  # raises NotFound
    database, ref = visit.database, visit.ref
    if number := visit.number("number", 0):
        found = await find_call(database, ref, visit.view, number)
        if found is None:
            raise NotFound(f"view {visit.view!r} of {visit.line!r} has no call {number}")
        return RedirectResponse(address(f"/ui/sessions/{visit.sid}/calls/{found}", view=visit.query("view")), 303)
    cursor = visit.query("cursor") or None
    page = await visit.api.get(f"{visit.path}/calls", view=visit.view, limit=LISTED, cursor=cursor)
    items = page["items"]
    place = await call_place(database, ref, visit.view, items[0]["call_id"]) if items else None
    causes = await epoch_causes(database, ref, visit.view, [item["epoch"] for item in items])
    return {"items": items, "place": place, "causes": causes, "next_cursor": page["next_cursor"]}
