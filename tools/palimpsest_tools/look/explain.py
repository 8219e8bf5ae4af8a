"""The command `explain`: how each call showed an event, and why."""

from collections.abc import Mapping, Sequence
from typing import Final

import typer
from palimpsest import Explanation, NotFoundError
from palimpsest.types import EventOut, HistoryItem, LineOut

from palimpsest_tools.server import PAGE, Address, connected, run

_EXCERPT_CHARS: Final = 70
_LINES_MAX: Final = 10
"""Maximum number of a session's other lines that are listed."""


def explain(address: Address, session: str, seq: int, view: str | None, *, every: bool) -> None:
    """Print the explanation; exit with 1 if there is no such event."""
    run(_explain(address, session, seq, view, every=every))


async def _explain(address: Address, session: str, seq: int, view: str | None, *, every: bool) -> None:
    async with connected(address) as client:
        asked = client.session(session)
        about = about_lines([line async for line in asked.list_lines(limit=PAGE)], session, seq)
        try:
            event = await asked.get_event(seq)
            calls = [item async for item in asked.get_event_history(seq, view=view, limit=PAGE)]
        except NotFoundError:
            for line in about:
                typer.echo(line)
            raise
    for line in [describe_event(event), *story(event, calls, every=every), *about]:
        typer.echo(line)


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


def describe_event(event: EventOut) -> str:
    """Return a line that describes an event."""
    kind = f"{event.type} of {event.tool}" if event.tool else event.type
    excerpt = " ".join(_text(event).split())
    if len(excerpt) > _EXCERPT_CHARS:
        excerpt = excerpt[: _EXCERPT_CHARS - 1] + "…"
    quoted = f': "{excerpt}"' if excerpt else ""
    return f"Event {event.seq}, {kind}, turn {event.turn}, {event.tokens:,} tokens{quoted}"


def _text(event: EventOut) -> str:
    content = event.content or event.arguments or ""
    if isinstance(content, list):
        return " ".join(part["text"] for part in content if isinstance(part.get("text"), str))
    return content if isinstance(content, str) else str(content)


def story(event: EventOut, calls: Sequence[HistoryItem], *, every: bool = False) -> list[str]:
    """Return lines on how the calls showed an event, by view: one for each change, or with `every` for each call."""
    if not calls:
        return ["No recorded call has been made since."]
    lines: list[str] = []
    for view in sorted({call.view for call in calls}):
        shown = [call for call in calls if call.view == view]
        lines.append(f"View {view}, {len(shown)} call{'s' if len(shown) != 1 else ''}:")
        for call in shown if every else Explanation(event, shown).changes:
            made, cause = f"{call.created_at:%Y-%m-%d %H:%M:%S}", f"epoch {call.epoch} ({call.cause})"
            lines.append(f"  {made}  call {call.call_id}  {cause}: {describe_call(call)}")
        if not every:
            lines.append(f"  and so it was in the last call, {shown[-1].call_id}")
    return lines


def describe_call(call: HistoryItem) -> str:
    """Return how a call showed the event, and why."""
    why = [part for part in (call.reducer, call.reason) if part]
    if call.summary and call.summary not in " ".join(why):
        why.append(f"summary {call.summary}")
    return _WORDS.get(call.disposition, call.disposition) + (f", by {': '.join(why)}" if why else "")


_WORDS: Final[Mapping[str, str]] = {
    "verbatim": "shown whole",
    "stubbed": "shown as a stub",
    "replaced": "shown by other words",
    "summarized": "told of by a summary",
    "dropped": "left out",
    "not_rendered": "not for the model",
    "redacted": "shown as erased",
}
