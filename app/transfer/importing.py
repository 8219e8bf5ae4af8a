"""Importing: the sessions of files appended to a server's log, as often as one likes."""

import asyncio
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import typer

from app.core.log.events import EVENTS_PER_BATCH_MAX, Json
from app.recordings.events import events_of
from app.recordings.files import RecordingFile, files_in, legal_id, read_file
from app.recordings.recording import MalformedRecording, NothingRecorded, Object, Recording
from app.remote.address import Address
from app.remote.client import Client, RequestFailed
from app.remote.server import NoServer, found_server
from app.remote.stopping import stop
from app.transfer.show import ImportedSession, ImportLines, ImportShow, ImportTable

_REQUEST_SECONDS_MAX: Final = 120.0
_BATCH_CHARS_MAX: Final = 4 * 1024 * 1024
"""A batch is sent at this size, well below what a server accepts, so that nothing waits long for one."""
_ENDS: Final = frozenset({"unreachable", "unauthorized", "not-local"})
"""What would befall every other file as well."""


def import_all(
    paths: Sequence[Path], session: str | None, prefix: str, model: str | None, address: Address, *, as_json: bool
) -> None:
    """Do what the command's arguments ask for; exit with 1 if anything could not be imported."""
    if session is not None and (len(paths) > 1 or paths[0].is_dir()):
        stop("--session names the session of one file; several have --prefix", 2)
    for option, given in (("--session", session), ("--prefix", prefix)):
        if given and legal_id(given) != given:
            stop(f"{option} may hold letters, digits and ._:@- only, 128 of them at most", 2)
    files = files_in(paths)
    if not files:
        stop(f"there is no JSONL file in {', '.join(map(str, paths))}", 2)
    try:
        failed = asyncio.run(_import(files, session, prefix, model, address, as_json=as_json))
    except NoServer as error:
        stop(str(error))
    except KeyboardInterrupt:
        stop("interrupted; to import the same again goes on from here", 130)
    if failed:
        raise typer.Exit(1)


async def _import(
    files: Sequence[RecordingFile],
    session: str | None,
    prefix: str,
    model: str | None,
    address: Address,
    *,
    as_json: bool,
) -> bool:
    """Import all files; return whether any failed."""
    await found_server(address)
    show: ImportShow = ImportLines(sys.stdout) if as_json else ImportTable(sys.stdout, len(files))
    async with address.http(_REQUEST_SECONDS_MAX) as http:
        client = Client(http, waits=True)
        with show:
            for file in files:
                show.begins(file.path)
                if not await _import_file(client, file, session, prefix, model, show):
                    break
            show.summary()
    return show.failures > 0


async def _import_file(
    client: Client, file: RecordingFile, session: str | None, prefix: str, model: str | None, show: ImportShow
) -> bool:
    """Import the sessions of a file; return whether it is worth going on with the next."""
    try:
        recordings = read_file(file.path, session)
    except NothingRecorded as empty:
        if file.found:
            show.skipped(empty.detail)
        else:
            show.failed(empty.detail)
        return True
    except MalformedRecording as malformed:
        show.failed(f"no recording that can be read: {malformed.detail}", malformed.line)
        return True
    except OSError as error:
        show.failed(error.strerror or str(error))
        return True
    for recording in recordings:
        name = f"{prefix}{recording.id}"
        try:
            show.ended(await import_session(client, recording, name, model, show.went_on))
        except RequestFailed as problem:
            show.failed(_words(name, problem))
            if problem.type in _ENDS:
                return False
    return True


async def import_session(
    client: Client, recording: Recording, session: str, model: str | None, on_batch: Callable[[int], None]
) -> ImportedSession:
    """Append what a session does not hold yet of a recording; `on_batch` gets the number of events of each request.

    Events are known by their ids: a session that begins with another event is not the recording's. Raises
    RequestFailed.
    """
    events = list(events_of(recording))
    is_new = False
    try:
        found = await client.session(session)
    except RequestFailed as problem:
        if problem.type != "not-found":
            raise
        is_new = True
        found = await client.put_session(session, None, model or recording.model, recording.metadata or None)
    head = found["head"]
    known = await _known(client, session, events) if head and events else frozenset()
    on_batch(len(known))
    added = 0
    try:
        for batch in _batches(event for event in events if event.get("id") not in known):
            added += sum(placed["seq"] > head for placed in await _send(client, session, batch))
            on_batch(len(batch))
    except RequestFailed:
        if is_new and not added:  # a session without anything in it is of no use
            with suppress(RequestFailed):
                await client.delete_session(session)
        raise
    return ImportedSession(session, len(events), added, recording.notes)


async def _send(client: Client, session: str, batch: Sequence[str]) -> Sequence[Object]:
    """Append events, in smaller requests where the server finds one too large; return the answers' events."""
    try:
        return await client.append_encoded(session, batch)
    except RequestFailed as problem:
        if problem.type != "body-too-large" or len(batch) == 1:
            raise
    half = len(batch) // 2
    return [*await _send(client, session, batch[:half]), *await _send(client, session, batch[half:])]


async def _known(client: Client, session: str, events: Sequence[Object]) -> frozenset[Json]:
    """The ids of those events that the session holds. Raises RequestFailed if it holds another one, or begins so.

    An id that the server made for an event of its own is found by no append, so the log is read. What was erased from
    it stays so.
    """
    first = await client.event(session, 1)
    if first["id"] != events[0].get("id"):
        detail = f"session {session} exists and holds something else; name another with --session or --prefix"
        raise RequestFailed("session-not-new", detail)
    ours = {event.get("id"): event for event in events}
    known = set()
    async for event in client.log(session):
        if (sent := ours.get(event["id"])) is None:
            continue
        stored = {"occurred_at": event["created_at"], **event}
        changed = [name for name, value in sent.items() if stored.get(name) != value]
        if changed and not event.get("redacted"):
            detail = f"{', '.join(changed)} of event {event['seq']}, id {event['id']!r}"
            raise RequestFailed("idempotency-conflict", detail)
        known.add(event["id"])
    return frozenset(known)


def _batches(events: Iterable[Object]) -> Iterator[list[str]]:
    """The events as JSON, in requests of a moderate size."""
    batch: list[str] = []
    size = 0
    for event in events:
        # Escaped, so that a lone surrogate of a file reaches the server, which is to judge it.
        text = json.dumps(event)
        if batch and (len(batch) == EVENTS_PER_BATCH_MAX or size + len(text) > _BATCH_CHARS_MAX):
            yield batch
            batch, size = [], 0
        batch.append(text)
        size += len(text)
    if batch:
        yield batch


def _words(session: str, problem: RequestFailed) -> str:
    if problem.type == "idempotency-conflict":
        return (
            f"session {session} holds an event of this file with other content: {problem.detail}. The file is another"
            " one, or what was imported of it has been changed since; name another session with --session or --prefix"
        )
    return str(problem) if problem.type == "session-not-new" else f"session {session}: {problem}"
