"""Exporting: whole sessions of a server as a file."""

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import typer

from app.core.log.events import FIELDS, Json, canonical_json
from app.recordings.recording import Object
from app.remote.address import Address
from app.remote.client import Client, RequestFailed
from app.remote.server import NoServer, found_server
from app.remote.stopping import stop
from app.transfer.provider import conversation

_REQUEST_SECONDS_MAX: Final = 120.0
NEUTRAL: Final = "neutral"
_SESSION: Final = ("model", "metadata")
"""What a session's line says of it beside its events, if it is set."""


def export_all(sessions: Sequence[str], format: str, out: Path | None, address: Address) -> None:
    """Do what the command's arguments ask for; exit with 1 if a session cannot be read."""
    if format != NEUTRAL and len(sessions) > 1:
        stop(f"one session a file in the format {format}; only neutral JSONL holds several", 2)
    try:
        lines = asyncio.run(_export(sessions, format, address))
        _write(lines, out)
    except (NoServer, RequestFailed) as error:
        stop(str(error))
    except OSError as error:
        stop(f"{out or 'standard output'}: {error.strerror}")
    except KeyboardInterrupt:
        stop("interrupted", 130)


async def _export(sessions: Sequence[str], format: str, address: Address) -> list[bytes]:
    await found_server(address)
    async with address.http(_REQUEST_SECONDS_MAX) as http:
        client = Client(http, waits=True)
        return [await _line(client, session, format) for session in sessions]


async def _line(client: Client, session: str, format: str) -> bytes:
    about = await client.session(session)
    log = [event async for event in client.log(session)]
    erased = [str(event["seq"]) for event in log if event.get("redacted")]
    if erased:
        _tell(session, f"erased on request, only the notice of that is written: events {', '.join(erased)}")
    if format == NEUTRAL:
        return canonical_json(neutral(session, about, log)).encode()
    written = conversation(log, format)
    for note in written.notes:
        _tell(session, note)
    return written.body


def neutral(session: str, about: Object, log: Sequence[Object]) -> dict[str, Json]:
    """The line of a session that gives the same log when it is imported: events without what a server adds to them.

    An event that names no time happened when it was appended, and says so.
    """
    head = {name: about[name] for name in _SESSION if about.get(name)}
    return {"id": session, **head, "events": [_event(event) for event in log]}


def _event(event: Mapping[str, Json]) -> dict[str, Json]:
    timed = {**event, "occurred_at": event.get("occurred_at") or event["created_at"]}
    return {"type": event["type"]} | {name: timed[name] for name in FIELDS if timed.get(name) is not None}


def _write(lines: Sequence[bytes], out: Path | None) -> None:
    """Write the lines; a file is replaced once all of it is written."""
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


def _tell(session: str, note: str) -> None:
    typer.echo(f"palimpsest: session {session}: {note}", err=True)
