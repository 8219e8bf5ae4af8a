"""The command `events`: a session's log, and the events in which a text occurs."""

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, cast

from palimpsest import AsyncSession
from palimpsest.types import EventOut

from palimpsest_tools.output import (
    Column,
    as_text,
    counted,
    cut,
    output_width,
    print_json,
    print_lines,
    printable,
    table,
)
from palimpsest_tools.server import Address, connected, run

SEARCHED_MAX: Final = 20_000
"""Number of events that one search reads."""
_PAGE: Final = 1_000
_BEFORE_MATCH: Final = 24
"""Number of characters that an excerpt shows before the text that was found."""
_TEXT_WIDTH_MIN: Final = 40
_COLUMNS: Final = (
    Column("SEQ", figures=True),
    Column("TURN", figures=True),
    Column("TYPE"),
    Column("TOKENS", figures=True),
    Column("TEXT"),
)


@dataclass(frozen=True, slots=True)
class FoundEvents:
    """Events of a log that a search found, oldest first, and the range of seqs that it read."""

    events: tuple[EventOut, ...]
    from_seq: int
    to_seq: int


def show_events(
    address: Address,
    session: str,
    find: str | None,
    type: str | None,
    after: int | None,
    limit: int,
    *,
    as_json: bool,
) -> None:
    """Print events in the order of the log: the first ones after a seq, by default the last ones."""
    run(_show(address, session, find, type, after, limit, as_json=as_json))


async def _show(
    address: Address,
    session: str,
    find: str | None,
    type: str | None,
    after: int | None,
    limit: int,
    *,
    as_json: bool,
) -> None:
    async with connected(address) as client:
        asked = client.session(session)
        head = (await asked.get_session()).head
        is_filtered = find is not None or type is not None
        most = SEARCHED_MAX if is_filtered else limit
        start = max(0, head - most) if after is None else after
        found = await search(asked, find, type=type, after=start, last=min(head, start + most))
    shown = found.events[-limit:] if after is None else found.events[:limit]
    if as_json:
        for event in shown:
            print_json(event.to_dict())
        return
    print_lines(describe(shown, find, output_width()))
    print_lines(remarks(found, len(shown), head, find, after=after) if is_filtered else [] if shown else ["no events"])


async def search(
    session: AsyncSession, text: str | None, *, type: str | None = None, after: int, last: int
) -> FoundEvents:
    """Read the events after a seq up to `last`, and return those in which a text occurs. Raises PalimpsestError."""
    found = []
    async for event in session.list_events(after=after, type=cast(Any, type), limit=min(_PAGE, max(1, last - after))):
        if event.seq > last:
            break
        if text is None or find_text(event_text(event), text) is not None:
            found.append(event)
    return FoundEvents(tuple(found), after + 1, last)


def event_text(event: EventOut) -> str:
    """Return the text of an event: its path, its content and a call's arguments."""
    texts = (event.path, content_text(event.content), json_text(event.arguments))
    return "\n".join(text for text in texts if text)


def content_text(content: str | list[dict[str, Any]] | None) -> str:
    """Return the text of an event's content; parts that are neither text nor definitions of tools are named."""
    if not isinstance(content, list):
        return content or ""
    return "\n".join(_part_text(part) for part in content)


def _part_text(part: dict[str, Any]) -> str:
    for field in ("text", "thinking"):
        if isinstance(part.get(field), str):
            return str(part[field])
    return _plain(part) if "name" in part or "function" in part else f"[{part.get('type', 'part')}]"


def json_text(value: object) -> str:
    """Return a JSON value, or the text of one, without quotes and escapes; any other text as it is."""
    if isinstance(value, str):
        with suppress(ValueError):
            value = json.loads(value)
    return "" if value is None else _plain(value)


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_plain(inner)}" for name, inner in value.items())
    return ", ".join(map(_plain, value)) if isinstance(value, list) else as_text(value)


def find_text(text: str, wanted: str) -> re.Match[str] | None:
    """Find a text in another one, in upper or lower case and whatever white space is between its words."""
    words = wanted.split()
    return re.search(r"\s+".join(map(re.escape, words)), text, re.IGNORECASE) if words else None


def excerpt(text: str, wanted: str | None, width: int) -> str:
    """Return a line from a text that is at most `width` wide: where a text occurs in it, else its beginning."""
    match = None if wanted is None else find_text(text, wanted)
    start = 0 if match is None else max(0, match.start() - _BEFORE_MATCH)
    line = printable(text[start : start + 4 * width])
    return cut(f"…{line}" if start else line, width)


def describe(events: Sequence[EventOut], wanted: str | None, width: int) -> list[str]:
    """Return a table of events; no line if there are none."""
    columns = [
        (f"{event.seq}", f"{event.turn}", f"{event.type} {event.tool or ''}".strip(), f"{event.tokens:,}")
        for event in events
    ]
    taken = sum(len(max(cells, key=len)) + 2 for cells in zip(*columns, strict=True)) if columns else 0
    room = max(_TEXT_WIDTH_MIN, width - taken)
    rows = [(*cells, excerpt(event_text(event), wanted, room)) for cells, event in zip(columns, events, strict=True)]
    return table(_COLUMNS, rows) if rows else []


def remarks(found: FoundEvents, shown: int, head: int, wanted: str | None, *, after: int | None) -> list[str]:
    """Return lines on the events that were not found, not shown, or not searched. `after` is the seq that was asked."""
    lines = []
    if not found.events:
        lines.append("no events" if wanted is None else f"no events with {wanted!r}")
    if shown < len(found.events):
        lines.append(f"{shown:,} of {counted(len(found.events), 'event')} found; --limit shows more")
    if found.to_seq < head or (after is None and found.from_seq > 1):
        lines.append(f"only events {found.from_seq:,} to {found.to_seq:,} of {head:,} were searched; see --after")
    return lines
