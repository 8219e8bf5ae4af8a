"""The command `explain`: what the model saw of an event, and why."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from app.remote.address import Address
from app.remote.client import Client, RequestFailed
from app.remote.server import NoServer, found_server
from app.remote.stopping import stop

_SECONDS_MAX: Final = 60.0
_BEGINS_CHARS: Final = 70
_LINES_MAX: Final = 10
"""Maximum number of a session's other lines that are listed."""

Json = Mapping[str, Any]


def tell(address: Address, session: str, seq: int, view: str | None, *, every: bool) -> None:
    """Print it, asked of a running server; exit with 1 when there is no such event."""
    try:
        asyncio.run(_explain(Console(highlight=False, soft_wrap=True), address, session, seq, view, every=every))
    except NoServer as error:
        stop(str(error))
    except RequestFailed as problem:
        stop(problem.detail)
    except KeyboardInterrupt:
        stop("interrupted")


async def _explain(
    console: Console, address: Address, session: str, seq: int, view: str | None, *, every: bool
) -> None:
    await found_server(address)
    async with address.http(_SECONDS_MAX) as http:
        client = Client(http)
        about = about_lines([line async for line in client.lines(session)], session, seq)
        try:
            told = [describe_event(await client.event(session, seq))]
            told += story([item async for item in client.history(session, seq, view)], every=every)
        except RequestFailed as problem:
            if problem.type == "not-found":
                console.print(Text("\n".join(about)), end="\n" if about else "")
            raise
    console.print(Text("\n".join([*told, *about])))


def about_lines(lines: Sequence[Json], address: str, seq: int) -> list[str]:
    """Lines of text on the line that was read and on the session's others; none where the session has only one.

    `address` is that of the session or of one line, `seq` the event that was asked for.
    """
    known = {line["id"]: line for line in lines}
    read = known.get(address) or next((line for line in lines if line["current"]), None)
    others = [line for line in reversed(lines) if line is not read]
    if read is None or not others:
        return []
    name = read["id"].rpartition("@line.")[0]
    current = f", the current line of {name}" if read["current"] else f", not the current line of {name}"
    said = [f"Read on {read['id']} (events 1 to {read['head']}){current}. Other lines of the session:"]
    for line in others[:_LINES_MAX]:
        if line["head"] < seq:
            what = "no such event"
        elif _owner(known, line["id"], seq) == _owner(known, read["id"], seq):
            what = f"the same event; its calls: palimpsest explain {line['id']} {seq}"
        else:
            what = f"its own event {seq}: palimpsest explain {line['id']} {seq}"
        said.append(f"  {line['id']} (events 1 to {line['head']}{', current' if line['current'] else ''}): {what}")
    if len(others) > _LINES_MAX:
        said.append(f"  and {len(others) - _LINES_MAX} older ones: GET /v1/sessions/{name}/lines")
    return said


def _owner(lines: Mapping[str, Json], line: str, seq: int) -> str:
    """The id of the line on which an event of `line` was appended."""
    while (own := lines[line])["parent"] in lines and seq <= own["at"]:
        line = own["parent"]
    return line


def describe_event(event: Json) -> str:
    """One line that describes an event."""
    kind = f"{event['type']} of {event['tool']}" if event.get("tool") else event["type"]
    begins = " ".join(_words(event).split())
    if len(begins) > _BEGINS_CHARS:
        begins = begins[: _BEGINS_CHARS - 1] + "…"
    said = f': "{begins}"' if begins else ""
    return f"Event {event['seq']}, {kind}, turn {event['turn']}, {event['tokens']:,} tokens{said}"


def _words(event: Json) -> str:
    content = event.get("content") or event.get("arguments") or ""
    if isinstance(content, list):
        return " ".join(part["text"] for part in content if isinstance(part.get("text"), str))
    return content if isinstance(content, str) else str(content)


def story(items: Sequence[Json], *, every: bool = False) -> list[str]:
    """Lines on what the model saw of an event, view by view: one for each change, or with `every` for each call."""
    if not items:
        return ["No recorded call has been made since."]
    views = sorted({item["view"] for item in items})
    lines: list[str] = []
    for view in views:
        calls = [item for item in items if item["view"] == view]
        lines.append(f"View {view}, {len(calls)} call{'s' if len(calls) != 1 else ''}:")
        last = None
        for number, item in enumerate(calls):
            now = describe_call(item)
            if every or now != last:
                cause = f"epoch {item['epoch']} ({item['cause']})"
                lines.append(f"  {item['created_at'][:19].replace('T', ' ')}  call {item['call_id']}  {cause}: {now}")
            last = now
            if number == len(calls) - 1 and not every:
                lines.append(f"  and so it was in the last call, {item['call_id']}")
    return lines


def describe_call(item: Json) -> str:
    """What the model saw of the event in one call, and why."""
    why = [part for part in (item.get("reducer"), item.get("reason")) if part]
    if item.get("summary") and item["summary"] not in " ".join(why):
        why.append(f"summary {item['summary']}")
    return _WORDS.get(item["disposition"], item["disposition"]) + (f", by {': '.join(why)}" if why else "")


_WORDS: Final[Mapping[str, str]] = {
    "verbatim": "shown whole",
    "stubbed": "shown as a stub",
    "replaced": "shown by other words",
    "summarized": "told of by a summary",
    "dropped": "left out",
    "not_rendered": "not for the model",
    "redacted": "shown as erased",
}
