"""The command `sessions`: the sessions of a server, the last changed ones first."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from palimpsest import AsyncPalimpsest
from palimpsest.types import SessionOut

from palimpsest_tools.output import (
    Column,
    as_text,
    counted,
    duration,
    output_width,
    print_json,
    print_lines,
    table,
)
from palimpsest_tools.server import PAGE, Address, connected, run

READ_MAX: Final = 1_000
"""Number of sessions that are read, the last created ones; the server lists them in no other order."""
SEARCHED_MAX: Final = 10_000
"""Number of sessions that are read to find some of them."""
_COLUMNS: Final = (
    Column("SESSION"),
    Column("MODEL"),
    Column("EVENTS", figures=True),
    Column("TURNS", figures=True),
    Column("LOG", figures=True),
    Column("CONTEXT", figures=True),
    Column("CHANGED"),
)


def show_sessions(address: Address, find: str | None, limit: int, *, as_json: bool) -> None:
    """Print the sessions that were changed last, of those that `find` occurs in."""
    run(_show(address, find, limit, as_json=as_json))


async def _show(address: Address, find: str | None, limit: int, *, as_json: bool) -> None:
    most = max(limit, READ_MAX if find is None else SEARCHED_MAX)
    async with connected(address) as client:
        read, more = await _read(client, most)
    found = [session for session in read if find is None or has_text(session, find)]
    found.sort(key=lambda session: session.updated_at, reverse=True)
    if as_json:
        for session in found[:limit]:
            print_json(session.to_dict())
        return
    print_lines(describe(found[:limit], datetime.now(UTC), output_width()))
    print_lines(remarks(len(read), len(found), limit, find, more=more))


async def _read(client: AsyncPalimpsest, most: int) -> tuple[list[SessionOut], bool]:
    """Return the sessions created last, at most `most`, and whether there are more."""
    read: list[SessionOut] = []
    async for session in client.list_sessions(limit=PAGE):
        if len(read) == most:
            return read, True
        read.append(session)
    return read, False


def has_text(session: SessionOut, text: str) -> bool:
    """Return whether a text occurs in a session's id, model or metadata, in upper or lower case."""
    texts = (session.id, session.model or "", json.dumps(session.metadata, ensure_ascii=False))
    return any(text.casefold() in one.casefold() for one in texts)


def describe(sessions: Sequence[SessionOut], now: datetime, width: int) -> list[str]:
    """Return a table of sessions, with their metadata if any has some; no line if there are none."""
    columns = (*_COLUMNS, Column("METADATA")) if any(session.metadata for session in sessions) else _COLUMNS
    rows = [
        (
            session.id,
            session.model or "-",
            f"{session.head:,}",
            f"{session.turns:,}",
            f"{session.tokens.log:,}",
            f"{session.tokens.context:,}",
            f"{duration(now - session.updated_at)} ago",
            ", ".join(f"{name}: {as_text(value)}" for name, value in session.metadata.items()),
        )[: len(columns)]
        for session in sessions
    ]
    return table(columns, rows, width) if rows else []


def remarks(read: int, found: int, limit: int, find: str | None, *, more: bool) -> list[str]:
    """Return lines on the sessions that the table leaves out."""
    lines = []
    if not found:
        lines.append("no sessions" if find is None else f"no session has {find!r} in its id, model or metadata")
    if found > limit:
        lines.append(f"{limit:,} of {counted(found, 'session')}, the last changed ones; --limit shows more")
    if more:
        lines.append(f"only the {read:,} sessions that were created last were read; there are older ones")
    return lines
