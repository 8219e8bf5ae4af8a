"""The log of a session: the pages of its events, and of the summaries of them with the runs that wrote these."""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final
from uuid import UUID

from fastapi import Response
from fastapi.responses import RedirectResponse

from app.core.errors import InvalidRequest, NotFound
from app.core.log.events import EventType
from app.core.memory.digest.appendix import TAGS
from app.core.record.over_time import event_text, holders, life_of, pattern, pieces, run_at
from app.http import paging
from app.wings.pages.page import Pages, Visit, address
from app.wings.pages.store import PlacedCall, counterpart, placed_call, state_runs

pages = Pages()
PAGE: Final = 40
PAGE_WITH_CALL: Final = 25
"""Number of events in a list; with a call, the fate of each is another request."""
SEARCHED_MAX: Final = 4_000
SEARCHED_BYTES_MAX: Final = 4_000_000
"""Events and bytes of events after which a search ends."""
_BATCH_MAX: Final = 400
_BATCH_BYTES: Final = 250_000
FIND_CHARS_MAX: Final = 200
TEXT_CHARS: Final = 4_096
_FAMILY_MAX: Final = 200


async def named_call(visit: Visit) -> PlacedCall | None:
    """Return the call that the query names by its number or id; None if it names none. Raises NotFound."""
    wanted = visit.query("call").strip()
    found = await placed_call(visit.database, visit.ref, visit.view, wanted.lower()) if wanted else None
    if wanted and found is None:
        raise NotFound(f"view {visit.view} has no call {wanted}")
    return found


async def fate(visit: Visit, seq: int, call: UUID) -> Mapping[str, Any] | None:
    """Return an event as a call shows it, an item of its history; None if the call's context does not reach it."""
    cursor = paging.encode(UUID(int=call.int - 1))
    path = f"{visit.path}/events/{seq}/history"
    items = (await visit.api.get(path, view=visit.view, limit=1, cursor=cursor))["items"]
    return items[0] if items and items[0]["call_id"] == str(call) else None


async def search(visit: Visit, find: str, kind: str, before: int, most: int) -> tuple[list[Mapping[str, Any]], int]:
    """Return the newest events before a seq in which a text occurs, and the lowest seq that was searched."""
    found: list[Mapping[str, Any]] = []
    wanted, read, end, batch = pattern(find), 0, before - 1, 10
    least = max(0, end - SEARCHED_MAX)
    while end > least and read < SEARCHED_BYTES_MAX:
        start = max(least, end - batch)
        body = await visit.api.read(f"{visit.path}/events", after=start, limit=end - start)
        read += len(body)
        for event in reversed(json.loads(body)["items"]):
            if (not kind or event["type"] == kind) and (not wanted or wanted.search(event_text(event))):
                found.append(event)
                if len(found) == most:
                    return found, event["seq"]
        end = start
        batch = min(_BATCH_MAX, 3 * batch) if len(body) < _BATCH_BYTES else max(1, batch // 3)
    return found, end + 1


@pages.page("/ui/sessions/{sid}/events", "events.html")
async def list_events_page(visit: Visit) -> Mapping[str, object] | Response:
    """Show the newest events, or those with a text, each with its form in a call."""
    find, kind, call = visit.query("find").strip()[:FIND_CHARS_MAX], visit.query("type"), await named_call(visit)
    head = (await visit.api.get(visit.path))["head"]
    if find.isascii() and find.isdigit() and 0 < int(find) <= head:
        path = f"/ui/sessions/{visit.sid}/events/{int(find)}"
        return RedirectResponse(address(path, call=visit.query("call"), view=visit.query("view")), 303)
    newest = min(head, call.head) if call else head
    before = visit.number("before", newest + 1, least=1, most=head + 1)
    events, lowest = await search(visit, find, kind, before, PAGE_WITH_CALL if call else PAGE)
    rows = []
    for event in events:
        text = event_text(event)
        shown = await fate(visit, event["seq"], call.call_id) if call else None
        rows.append((event, pieces(text, pattern(find)), shown))
    return {
        "find": find,
        "kind": kind,
        "kinds": [one.value for one in EventType],
        "call": call,
        "rows": rows,
        "head": head,
        "newest": newest,
        "before": before,
        "lowest": lowest,
    }


@pages.page("/ui/sessions/{sid}/events/{seq:int}", "event.html")
async def show_event(visit: Visit) -> Mapping[str, object]:
    """Show one event, its fate in all calls since, and the decision at each change."""
    seq, call = visit.request.path_params["seq"], await named_call(visit)
    event = await visit.api.get(f"{visit.path}/events/{seq}")
    runs = await state_runs(visit.database, visit.ref, visit.view, seq)
    life = life_of([(run, await fate(visit, seq, run.call_id)) for run in runs])
    at_call = await fate(visit, seq, call.call_id) if call else None
    shown = at_call or (life[-1].item if life else None)
    text = event_text(event)
    return {
        "event": event,
        "seq": seq,
        "text": text[:TEXT_CHARS],
        "chars": len(text),
        "counterpart": await counterpart(visit.database, visit.ref, seq),
        "call": call,
        "at_call": at_call,
        "run": call and run_at(life, call.number),
        "life": life,
        "summary": await _summary(visit, shown),
        **await _family(visit, seq),
    }


async def _summary(visit: Visit, shown: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the summary that replaces an event; None without one, or if it was deleted since."""
    if shown is None or shown["summary"] is None:
        return None
    with suppress(NotFound):
        found: Mapping[str, Any] = await visit.api.get(f"{visit.path}/summaries/{shown['summary']}")
        return found
    return None


async def _family(visit: Visit, seq: int) -> Mapping[str, object]:
    """Return the other lines, the parent and the forks that have an event in their logs."""
    lines = (await visit.api.get(f"/v1/sessions/{visit.session}/lines", limit=_FAMILY_MAX))["items"]
    forks = (await visit.api.get("/v1/sessions", parent=visit.session, limit=_FAMILY_MAX))["items"]
    session = await visit.api.get(visit.path)
    parent = session["parent"]
    return {
        "head": session["head"],
        "lines": holders(lines, visit.line, seq),
        "forks": [fork["id"] for fork in forks if fork["parent"] and seq <= fork["parent"]["at"]],
        "parent": parent["id"] if parent and seq <= parent["at"] else None,
    }


@pages.page("/ui/sessions/{sid}/events/{seq:int}/text", "event.html")
async def show_event_text(visit: Visit) -> Response:
    """Show the whole text of an event, as plain text."""
    event = await visit.api.get(f"{visit.path}/events/{visit.request.path_params['seq']}")
    return Response(event_text(event).encode("utf-8", "replace"), media_type="text/plain; charset=utf-8")


LISTED: Final = 500
RUNS: Final = 30
ORIGINALS: Final = 50
SUMMARY_CHARS: Final = 65_536
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
    text = whole["text"][:SUMMARY_CHARS]
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
