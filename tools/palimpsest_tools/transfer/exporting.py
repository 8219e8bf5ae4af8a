"""The command `export`: whole sessions of a server as a file."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import typer
from palimpsest import AsyncSession

from app.core.log.events import FIELDS, Json, canonical_json
from palimpsest_tools.recordings.recording import Object
from palimpsest_tools.server import PAGE, Address, connected, run, stop
from palimpsest_tools.transfer.provider import conversation

NEUTRAL: Final = "neutral"
_SESSION: Final = ("model", "metadata")
"""The session's settings in its line, if they are set."""


def export_all(sessions: Sequence[str], format: str, out: Path | None, address: Address) -> None:
    """Run the command; exit with 1 if a session cannot be read."""
    if format != NEUTRAL and len(sessions) > 1:
        stop(f"one session a file in the format {format}; only neutral JSONL holds several", 2)
    lines = run(_export(sessions, format, address))
    try:
        _write(lines, out)
    except OSError as error:
        stop(f"{out or 'standard output'}: {error.strerror}")


async def _export(sessions: Sequence[str], format: str, address: Address) -> list[bytes]:
    async with connected(address) as client:
        return [await _line(client.session(session), format) for session in sessions]


async def _line(session: AsyncSession, format: str) -> bytes:
    settings = (await session.get_session()).to_dict()
    log = [event.to_dict() async for event in session.list_events(limit=PAGE)]
    erased = [str(event["seq"]) for event in log if event.get("redacted")]
    if erased:
        _note(session.id, f"erased on request, only the notice of that is written: events {', '.join(erased)}")
    if format == NEUTRAL:
        return canonical_json(neutral(session.id, settings, log)).encode()
    written = conversation(log, format)
    for note in written.notes:
        _note(session.id, note)
    return written.body


def neutral(session: str, settings: Object, log: Sequence[Object]) -> dict[str, Json]:
    """Return a session's line, which gives the same log when it is imported.

    The fields that the server adds are left out, except the time of an append for an event without a time of its own.
    """
    head = {name: settings[name] for name in _SESSION if settings.get(name)}
    return {"id": session, **head, "events": [_event(event) for event in log]}


def _event(event: Mapping[str, Json]) -> dict[str, Json]:
    timed = {**event, "occurred_at": event.get("occurred_at") or event["created_at"]}
    return {"type": event["type"]} | {name: timed[name] for name in FIELDS if timed.get(name) is not None}


def _write(lines: Sequence[bytes], out: Path | None) -> None:
    """Write the lines. A file is replaced only when all of it is written."""
    text = b"".join(line + b"\n" for line in lines)
    if out is None:
        sys.stdout.buffer.write(text)
        sys.stdout.buffer.flush()
        return
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        part.write_bytes(text)
        part.replace(out)
    finally:
        part.unlink(missing_ok=True)


def _note(session: str, note: str) -> None:
    typer.echo(f"palimpsest: session {session}: {note}", err=True)
