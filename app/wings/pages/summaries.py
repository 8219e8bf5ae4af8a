"""The page of a session's summaries: their tree, their texts and originals, and the runs that wrote them."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from fastapi import Response
from fastapi.responses import RedirectResponse

from app.core.audit.event_life import event_text
from app.core.errors import InvalidRequest
from app.core.memory.digest.appendix import TAGS
from app.wings.pages.page import Pages, Visit
from app.wings.pages.render import address

pages = Pages()

LISTED: Final = 500
RUNS: Final = 30
ORIGINALS: Final = 50
TEXT_CHARS: Final = 65_536
COVERED_MAX: Final = 20_000
"""Number of events up to which the page proves coverage; more take too long."""
_SECTION: Final = re.compile(rf"<({'|'.join(TAGS)})>\n.*?\n</\1>", re.DOTALL)


def sections(text: str) -> list[tuple[str, bool]]:
    """Divide a model's summary into pieces, each with whether it was extracted from the events without the model."""
    pieces, end = [], 0
    for found in _SECTION.finditer(text):
        pieces += [(text[end : found.start()], False), (found[0], True)]
        end = found.end()
    return [piece for piece in (*pieces, (text[end:], False)) if piece[0]]


def tree(summaries: Sequence[Mapping[str, Any]], head: int) -> list[tuple[float, float, Mapping[str, Any]]]:
    """Return x and width of each summary's span in a drawing of 1,000 units for the events 1..head."""
    scale = 1000 / max(1, head)
    spans = [(one["from_seq"] - 1, one["to_seq"] - one["from_seq"] + 1, one) for one in summaries]
    return [(round(first * scale, 1), max(1.5, round(size * scale, 1)), one) for first, size, one in spans]


@pages.page("/ui/sessions/{sid}/summaries", "summaries.html")
async def show_summaries(visit: Visit) -> Mapping[str, object]:
    """Show the summaries by depth; the one that the query names with its text and its originals."""
    path = visit.path
    session = await visit.api.get(path)
    live_only = visit.query("all") != "yes"
    page = await visit.api.get(f"{path}/summaries", limit=LISTED, live=live_only)
    runs = await visit.api.get(f"{path}/compactions", limit=RUNS)
    proved = session["head"] <= COVERED_MAX
    return {
        "session": session,
        "live_only": live_only,
        "summaries": sorted(page["items"], key=lambda one: (one["from_seq"], -one["depth"])),
        "partial": page["next_cursor"] is not None,
        "spans": tree(page["items"], session["head"]),
        "deepest": max((one["depth"] for one in page["items"]), default=0),
        "runs": runs["items"],
        "opened": await _opened(visit, path),
        "coverage": await visit.api.get(f"{path}/coverage", view=visit.view) if proved else None,
        "message": visit.query("done"),
    }


async def _opened(visit: Visit, path: str) -> Mapping[str, Any] | None:
    wanted = visit.query("open")
    if not wanted:
        return None
    whole = await visit.api.get(f"{path}/summaries/{_id(wanted)}")
    after, last = whole["from_seq"] - 1, whole["to_seq"]
    events = (await visit.api.get(f"{path}/events", after=after, limit=ORIGINALS))["items"]
    originals = [{**event, "text": event_text(event)} for event in events if event["seq"] <= last]
    text = whole["text"][:TEXT_CHARS]
    pieces = [(text, False)] if whole["summarizer"] == "extractive" and text else sections(text)
    return {"whole": whole, "pieces": pieces, "originals": originals}


def _id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise InvalidRequest("open must be the id of a summary", field="open") from None


@pages.page("/ui/sessions/{sid}/compact", "summaries.html", method="POST", scope="admin")
async def request_compaction(visit: Visit) -> Response:
    """Request a compaction, or that a failed run is repeated, and lead back to the summaries."""
    run, path = (await visit.form()).get("run"), f"{visit.path}/compactions"
    done = await visit.api.post(f"{path}/{_id(run)}:retry" if run else path, None if run else {})
    return RedirectResponse(address(f"/ui/sessions/{visit.sid}/summaries", done=done["state"]), 303)
