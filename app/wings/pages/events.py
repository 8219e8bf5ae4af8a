"""The pages of a session's events: the log, a search in it, and the life of one event."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from fastapi import Response
from fastapi.responses import RedirectResponse

from app.core.errors import InvalidRequest, NotFound
from app.core.log.events import EventType
from app.http import paging
from app.wings.pages.event_store import counterpart, state_runs
from app.wings.pages.life import WORDS, LifeRun, event_text, holders, life_of, pattern, pieces, place_of, run_at, strip
from app.wings.pages.page import Pages, Visit
from app.wings.pages.render import address
from app.wings.pages.store import call_place, find_call

pages = Pages()
PAGE: Final = 40
PAGE_WITH_CALL: Final = 25
"""Number of events in a list; with a call, the fate of each is another request."""
SEARCHED_MAX: Final = 4_000
SEARCHED_BYTES_MAX: Final = 8_000_000
"""Events and bytes of events that one request searches at most."""
_BATCH: Final = 200
FIND_CHARS_MAX: Final = 200
TEXT_CHARS: Final = 4_096
_FAMILY_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class CallNamed:
    """A recorded call of a view, its number in the order of time, and the last event that its context reaches."""

    id: UUID
    number: int
    head: int


async def named_call(visit: Visit) -> CallNamed | None:
    """Return the call that the query names by number or id; None if it names none. Raises NotFound."""
    wanted = visit.query("call").strip()
    if not wanted:
        return None
    ref, database = visit.ref, visit.database
    try:
        number = int(wanted) if wanted.isascii() and wanted.isdigit() and len(wanted) < 10 else 0
        id = await find_call(database, ref, visit.view, number) if number else UUID(wanted)
    except ValueError:
        raise InvalidRequest("a call is named by its number or its id", field="call") from None
    after = paging.encode(UUID(int=id.int + 1)) if id and id.int < 2**128 - 1 else None
    path = f"/v1/sessions/{visit.line}/calls"
    found = (await visit.api.get(path, view=visit.view, limit=1, cursor=after))["items"] if after else []
    if id is None or not found or found[0]["call_id"] != str(id):
        raise NotFound(f"view {visit.view} has no call {wanted}")
    number = number or (await call_place(database, ref, visit.view, id)).number
    return CallNamed(id, number, found[0]["head"])


async def fate(visit: Visit, seq: int, call: UUID) -> Mapping[str, Any] | None:
    """Return an event as a call shows it, an item of its history; None if the call's context does not reach it."""
    cursor = paging.encode(UUID(int=call.int - 1))
    path = f"/v1/sessions/{visit.line}/events/{seq}/history"
    items = (await visit.api.get(path, view=visit.view, limit=1, cursor=cursor))["items"]
    return items[0] if items and items[0]["call_id"] == str(call) else None


@dataclass(frozen=True, slots=True)
class Searched:
    """The events that a list shows, newest first, and the lowest seq that was searched for them."""

    events: list[Mapping[str, Any]]
    lowest: int


async def search(visit: Visit, find: str, kind: str, before: int, most: int) -> Searched:
    """Return the newest events before a seq in which a text occurs, as far as one request searches."""
    found, wanted, read, end = [], pattern(find), 0, before - 1
    least = max(0, end - SEARCHED_MAX)
    batch = _BATCH if wanted or kind else most
    while end > least and read < SEARCHED_BYTES_MAX:
        start = max(least, end - batch)
        body = await visit.api.read(f"/v1/sessions/{visit.line}/events", after=start, limit=end - start)
        read += len(body)
        for event in reversed(json.loads(body)["items"]):
            if (not kind or event["type"] == kind) and (not wanted or wanted.search(event_text(event))):
                found.append(event)
                if len(found) == most:
                    return Searched(found, event["seq"])
        end = start
    return Searched(found, end + 1)


@pages.page("/ui/sessions/{sid}/events", "events.html")
async def list_events_page(visit: Visit) -> Mapping[str, object] | Response:
    """Show the newest events, or those with a text, and what a call showed of each."""
    find, kind, call = visit.query("find").strip()[:FIND_CHARS_MAX], visit.query("type"), await named_call(visit)
    head = (await visit.api.get(f"/v1/sessions/{visit.line}"))["head"]
    if find.isascii() and find.isdigit() and 0 < int(find) <= head:
        path = f"/ui/sessions/{visit.sid}/events/{int(find)}"
        return RedirectResponse(address(path, call=visit.query("call"), view=visit.query("view")), 303)
    newest = min(head, call.head) if call else head
    before = visit.number("before", newest + 1, least=1, most=head + 1)
    searched = await search(visit, find, kind, before, PAGE_WITH_CALL if call else PAGE)
    rows = []
    for event in searched.events:
        text = event_text(event)
        shown = await fate(visit, event["seq"], call.id) if call else None
        run = LifeRun(call.number, call.number, shown) if call and shown else None
        rows.append((event, pieces(text, pattern(find)), run))
    return {
        "find": find,
        "kind": kind,
        "kinds": [one.value for one in EventType],
        "call": call,
        "rows": rows,
        "head": head,
        "newest": newest,
        "before": before,
        "lowest": searched.lowest,
    }


@pages.page("/ui/sessions/{sid}/events/{seq:int}", "event.html")
async def show_event(visit: Visit) -> Mapping[str, object]:
    """Show one event, its fate in all calls since, and the decision at each change."""
    seq, call = visit.request.path_params["seq"], await named_call(visit)
    ref, database = visit.ref, visit.database
    event = await visit.api.get(f"/v1/sessions/{visit.line}/events/{seq}")
    runs = await state_runs(database, ref, visit.view, seq)
    life = life_of([(run, await fate(visit, seq, run.call_id)) for run in runs])
    at_call = await fate(visit, seq, call.id) if call else None
    shown = at_call or (life[-1].item if life else None)
    text = event_text(event)
    return {
        "event": event,
        "seq": seq,
        "text": text[:TEXT_CHARS],
        "chars": len(text),
        "counterpart": await counterpart(database, ref, seq),
        "call": call,
        "at_call": LifeRun(call.number, call.number, at_call) if call and at_call else None,
        "run": call and run_at(life, call.number),
        "mark_x": place_of(life, call.number + 0.5) if call and life else 0,
        "life": life,
        "strip": strip(life),
        "words": WORDS,
        "summary": await _summary(visit, shown),
        **await _family(visit, seq),
    }


async def _summary(visit: Visit, shown: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the summary that replaces an event; None without one, or if it was deleted since."""
    if shown is None or shown["summary"] is None:
        return None
    with suppress(NotFound):
        found: Mapping[str, Any] = await visit.api.get(f"/v1/sessions/{visit.line}/summaries/{shown['summary']}")
        return found
    return None


async def _family(visit: Visit, seq: int) -> Mapping[str, object]:
    """Return the other lines, the parent and the forks that have an event in their logs."""
    lines = (await visit.api.get(f"/v1/sessions/{visit.session}/lines", limit=_FAMILY_MAX))["items"]
    forks = (await visit.api.get("/v1/sessions", parent=visit.session, limit=_FAMILY_MAX))["items"]
    session = await visit.api.get(f"/v1/sessions/{visit.line}")
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
    event = await visit.api.get(f"/v1/sessions/{visit.line}/events/{visit.request.path_params['seq']}")
    return Response(event_text(event).encode("utf-8", "replace"), media_type="text/plain; charset=utf-8")
