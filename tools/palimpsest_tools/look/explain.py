"""The command `explain`: how calls showed an event or a text, and why."""

from collections.abc import Mapping, Sequence
from typing import Final

import typer
from palimpsest import NotFoundError
from palimpsest.types import LineOut

from palimpsest_tools.look.at_call import describe_story, read_event_story, read_text_story, story_json
from palimpsest_tools.look.calls import RecordedCalls, about_other_lines, read_calls, require_call
from palimpsest_tools.look.story import describe_event, story
from palimpsest_tools.output import print_json, print_lines
from palimpsest_tools.server import PAGE, Address, connected, run

_LINES_MAX: Final = 10
"""Maximum number of a session's other lines that are listed."""


def explain(address: Address, session: str, seq: int, view: str | None, *, every: bool, as_json: bool) -> None:
    """Print how each call showed an event; exit with 1 if there is no such event."""
    run(_explain(address, session, seq, view, every=every, as_json=as_json))


async def _explain(address: Address, session: str, seq: int, view: str | None, *, every: bool, as_json: bool) -> None:
    async with connected(address) as client:
        asked = client.session(session)
        about = about_lines([line async for line in asked.list_lines(limit=PAGE)], session, seq)
        try:
            event = await asked.get_event(seq)
            history = [item async for item in asked.get_event_history(seq, view=view, limit=PAGE)]
        except NotFoundError:
            print_lines(about)
            raise
        numbers = _numbers(await read_calls(client, session)) if history else {}
    if as_json:
        print_json({"event": event.to_dict(), "history": [item.to_dict() for item in history]})
    else:
        print_lines([describe_event(event), *story(history, numbers, every=every), *about])


def explain_call(
    address: Address,
    session: str,
    seq: int | None,
    find: str | None,
    call: str | None,
    view: str | None,
    *,
    as_json: bool,
) -> None:
    """Print whether one call showed a text or an event, and why; exit with 1 if neither log nor call has it."""
    run(_explain_call(address, session, seq, find, call, view, as_json=as_json))


async def _explain_call(
    address: Address,
    session: str,
    seq: int | None,
    find: str | None,
    call: str | None,
    view: str | None,
    *,
    as_json: bool,
) -> None:
    async with connected(address) as client:
        recorded, one = await require_call(client, session, call, view)
        if find is not None:
            found = await read_text_story(client, one, find)
        else:
            found = await read_event_story(client, one, seq or 0)
    if as_json:
        print_json(story_json(found))
    else:
        print_lines(describe_story(found, _numbers(recorded)))
        if not found.events:
            print_lines(about_other_lines(recorded))
    if not found.events and not found.held_by:
        raise typer.Exit(1)


def _numbers(recorded: RecordedCalls) -> Mapping[str, int]:
    """Return the numbers of calls by id."""
    return {one.call.call_id: one.number for one in recorded.calls}


def about_lines(lines: Sequence[LineOut], id: str, seq: int) -> list[str]:
    """Return lines of text about the line that was read and the session's others; none if the session has only one.

    `id` is the id of the session or of one of its lines, `seq` the requested event.
    """
    known = {line.id: line for line in lines}
    read = known.get(id) or next((line for line in lines if line.current), None)
    others = [line for line in reversed(lines) if line is not read]
    if read is None or not others:
        return []
    name = read.id.rpartition("@line.")[0]
    current = f", the current line of {name}" if read.current else f", not the current line of {name}"
    text = [f"Read on {read.id} (events 1 to {read.head}){current}. Other lines of the session:"]
    for line in others[:_LINES_MAX]:
        if line.head < seq:
            what = "no such event"
        elif _owner(known, line.id, seq) == _owner(known, read.id, seq):
            what = f"the same event; its calls: palimpsest explain {line.id} {seq}"
        else:
            what = f"its own event {seq}: palimpsest explain {line.id} {seq}"
        text.append(f"  {line.id} (events 1 to {line.head}{', current' if line.current else ''}): {what}")
    if len(others) > _LINES_MAX:
        text.append(f"  and {len(others) - _LINES_MAX} older ones: GET /v1/sessions/{name}/lines")
    return text


def _owner(lines: Mapping[str, LineOut], line: str, seq: int) -> str:
    """Return the id of the line on which an event of `line` was appended."""
    while (parent := lines[line].parent) in lines and seq <= (lines[line].at or 0):
        line = parent or line
    return line
