"""The calls of a session: their sizes over time and as a list, and the pages of one call, with its request."""

import asyncio
import base64
import hashlib
from collections.abc import Mapping
from itertools import groupby
from typing import Any, Final
from uuid import UUID

from fastapi import Response
from fastapi.responses import RedirectResponse
from markupsafe import Markup

from app.core.errors import NotFound
from app.core.log.events import canonical_json
from app.core.record.reading import compare, curl_command, expected_read, first_difference, left_out
from app.http import paging
from app.wings.pages.page import Pages, Visit, address, assets, environment
from app.wings.pages.store import call_place, epoch_causes, epoch_starts, find_call, read_columns
from app.wings.pages.strata import HEIGHT, SOURCES, WIDTH, draw_strata

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


CALL: Final = "/ui/sessions/{sid}/calls/{call_id}"
BLOCK_TEXT_CHARS: Final = 4_096
EXPORTED_CHARS: Final = 100_000
BLOCKS_SHOWN: Final = 200
BLOCKS_OPEN: Final = 30
"""Number of blocks on a page, and of those at its end whose text is open."""
COMPARED_CHARS: Final = 8_000
CHANGES_SHOWN: Final = 150
_BLOCK_PAGES_MAX: Final = 5


def call_id(visit: Visit, name: str = "call_id") -> UUID:
    """Return the id of a call in the path. Raises NotFound."""
    try:
        return UUID(visit.request.path_params[name])
    except ValueError:
        raise NotFound("this is no call's id") from None


async def call_values(visit: Visit, id: UUID, chars: int) -> dict[str, Any]:
    """Return a call rendered again, with its place, its blocks of at most `chars` characters, and who declined."""
    path = f"{visit.path}/calls/{id}"
    again = await visit.api.get(f"{path}/context")
    record = await visit.api.get(path, dispositions=False)
    return await _blocks_of(visit, record, chars) | {"again": again, "declined": record["declined"]}


async def _blocks_of(visit: Visit, record: Mapping[str, Any], chars: int) -> dict[str, Any]:
    """Return a call with its place and its blocks. No operation that reads the whole log is used."""
    id, view = UUID(record["call_id"]), record["view"]
    before = paging.encode(UUID(int=id.int + 1))
    items = (await visit.api.get(f"{visit.path}/calls", limit=1, cursor=before, view=view))["items"]
    causes = await epoch_causes(visit.database, visit.ref, view, [record["epoch"]])
    return {
        "call": items[0],
        "place": await call_place(visit.database, visit.ref, view, id),
        "blocks": await request_blocks(visit, id, chars, _BLOCK_PAGES_MAX),
        "cause": causes.get(record["epoch"]),
    }


async def request_blocks(visit: Visit, id: UUID | str, chars: int, pages_max: int) -> list[Mapping[str, Any]]:
    """Return the blocks of a call's request, of at most `chars` characters; of very many, the first pages of 1,000."""
    found: list[Mapping[str, Any]] = []
    cursor = None
    for _ in range(pages_max):
        page = await visit.api.get(f"{visit.path}/calls/{id}/blocks", text=chars, limit=1000, cursor=cursor)
        found, cursor = found + page["items"], page["next_cursor"]
        if cursor is None:
            break
    return found


@pages.page(CALL, "call.html")
async def show_call(visit: Visit) -> Mapping[str, object]:
    """Show one call: its blocks, the content that was left out, and its use of tokens and of the cache."""
    found = await call_values(visit, call_id(visit), BLOCK_TEXT_CHARS)
    last = max(0, len(found["blocks"]) - BLOCKS_SHOWN)
    first = visit.number("from", last, most=len(found["blocks"]))
    shown = found["blocks"][first : first + BLOCKS_SHOWN]
    return found | {
        "left_out": left_out(found["again"]["evictions"]),
        "expected": expected_read(found["blocks"]),
        "first": first,
        "shown": shown,
        "size": BLOCKS_SHOWN,
        "open_from": found["blocks"][-1]["index"] + 1 - BLOCKS_OPEN if found["blocks"] else 0,
    }


@pages.page(f"{CALL}/blocks/{{index:int}}", "call.html")
async def show_block_text(visit: Visit) -> Response:
    """Show the whole text of a block, as plain text."""
    index = visit.request.path_params["index"]
    block = await visit.api.get(f"{visit.path}/calls/{call_id(visit)}/blocks/{index}")
    return Response(block["text"].encode("utf-8", "replace"), media_type="text/plain; charset=utf-8")


async def _request(visit: Visit) -> Mapping[str, Any]:
    found: Mapping[str, Any] = await visit.api.get(f"{visit.path}/calls/{call_id(visit)}/context")
    return found


@pages.page(f"{CALL}/request.json", "call.html")
async def show_request(visit: Visit) -> Response:
    """Show the request as JSON, byte for byte as its hash in the record was made of."""
    return Response(canonical_json((await _request(visit))["request"]), media_type="application/json")


@pages.page(f"{CALL}/curl", "call.html")
async def show_command(visit: Visit) -> Response:
    """Show a command that sends the request to its provider. Raises NotFound for the format of no provider."""
    found = await _request(visit)
    command = curl_command(found["format"], found["model"], found["request"])
    if command is None:
        raise NotFound(f"requests in the format {found['format']} are for no provider")
    return Response(command, media_type="text/plain; charset=utf-8")


@pages.page(f"{CALL}/export", "export.html")
async def export_call(visit: Visit) -> Response:
    """Return the call as one HTML file that needs nothing else and runs nothing."""
    found = await call_values(visit, call_id(visit), EXPORTED_CHARS)
    style = assets()["pages.css"][0]
    policy = f"default-src 'none'; style-src 'sha256-{base64.b64encode(hashlib.sha256(style).digest()).decode()}'"
    left, expected = left_out(found["again"]["evictions"]), expected_read(found["blocks"])
    own = Markup(style.decode())  # noqa: S704 - the server's own file
    text = (
        environment()
        .get_template("export.html")
        .render(found, left_out=left, expected=expected, style=own, policy=policy, visit=visit)
    )
    name = f"call-{found['place'].number}.html"
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Content-Security-Policy": policy}
    return Response(text.encode("utf-8", "replace"), headers=headers, media_type="text/html; charset=utf-8")


@pages.page(f"{CALL}/diff", "call.html")
async def find_difference(visit: Visit) -> Response:
    """Lead to the difference from the call whose number the query has, the earlier one first. Raises NotFound."""
    id, number = call_id(visit), visit.number("number", 0)
    other = await find_call(visit.database, visit.ref, visit.view, number) if number else None
    if other is None:
        raise NotFound(f"view {visit.view} has no call {visit.query('number')}")
    a, b = sorted((id, other))
    return RedirectResponse(address(f"/ui/sessions/{visit.sid}/calls/{a}/diff/{b}", view=visit.query("view")), 303)


@pages.page(f"{CALL}/diff/{{other_id}}", "call_diff.html")
async def show_difference(visit: Visit) -> Mapping[str, object]:
    """Show the differences between two calls of a session."""
    path = f"{visit.path}/calls"
    ids = (call_id(visit), call_id(visit, "other_id"))
    records = [await visit.api.get(f"{path}/{id}", dispositions=False, declined=False) for id in ids]
    a, b = [await _blocks_of(visit, record, COMPARED_CHARS) for record in records]
    changes = await asyncio.to_thread(compare, a["blocks"], b["blocks"], records[1]["evictions"])
    reasons: dict[tuple[str, str, str], list[int]] = {}
    for change in changes:
        if change.kind != "same":
            why = change.why or {}
            reducer = why.get("reducer") or ""
            key = (change.kind, reducer, "summary" if reducer == "fold" else why.get("reason") or "")
            counted = reasons.setdefault(key, [0, 0])
            reasons[key] = [counted[0] + 1, counted[1] + change.tokens]
    runs = [(kind, list(run)) for kind, run in groupby(changes, lambda one: one.kind)]
    first = first_difference(a["blocks"], b["blocks"])
    return {
        "a": a,
        "b": b,
        "reasons": reasons,
        "runs": runs,
        "most": CHANGES_SHOWN,
        "first": first,
        "kept": sum(block["tokens"] for block in b["blocks"][:first]),
        "rest": sum(block["tokens"] for block in b["blocks"][first:]),
    }
