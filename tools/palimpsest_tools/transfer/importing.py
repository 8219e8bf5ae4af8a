"""The command `import`: sessions of files into a server's log. A repeated import appends only new events."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, cast

import typer
from palimpsest import (
    AsyncPalimpsest,
    AsyncSession,
    AuthenticationError,
    ConnectionFailed,
    IdempotencyConflictError,
    NotFoundError,
    NotLocalError,
    PalimpsestError,
    TooLargeError,
)
from palimpsest.types import AppendedEvent

from app.core.log.events import EVENTS_PER_BATCH_MAX, Json
from palimpsest_tools.recordings.files import RecordingFile, files_in, legal_id, read_file
from palimpsest_tools.recordings.recording import MalformedRecording, NothingRecorded, Object, Recording, events_of
from palimpsest_tools.server import PAGE, Address, connected, reason_of, run, stop
from palimpsest_tools.transfer.show import ImportedSession, ImportLines, ImportShow, ImportTable

_BATCH_CHARS_MAX: Final = 4 * 1024 * 1024
"""Size of a request, well below the server's limit, so that no request takes long."""
_FATAL: Final = (ConnectionFailed, AuthenticationError, NotLocalError)
"""Errors that every other file would meet, too."""


class CannotImport(Exception):
    """The session exists with other content than the recording; the message says which."""


def import_all(
    paths: Sequence[Path], session: str | None, prefix: str, model: str | None, address: Address, *, as_json: bool
) -> None:
    """Run the command; exit with 1 if anything could not be imported."""
    if session is not None and (len(paths) > 1 or paths[0].is_dir()):
        stop("--session names the session of one file; several have --prefix", 2)
    for option, given in (("--session", session), ("--prefix", prefix)):
        if given and legal_id(given) != given:
            stop(f"{option} may hold letters, digits and ._:@- only, 128 of them at most", 2)
    files = files_in(paths)
    if not files:
        stop(f"there is no log of an agent in {', '.join(map(str, paths))}", 2)
    work = _import(files, session, prefix, model, address, as_json=as_json)
    if run(work, "interrupted; to import the same again goes on from here"):
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
    async with connected(address) as client:
        with ImportLines(sys.stdout) if as_json else ImportTable(sys.stdout, len(files)) as show:
            for file in files:
                show.start(file.path)
                if not await _import_file(client, file, session, prefix, model, show):
                    break
            show.summary()
    return show.failures > 0


async def _import_file(
    client: AsyncPalimpsest, file: RecordingFile, session: str | None, prefix: str, model: str | None, show: ImportShow
) -> bool:
    """Import the sessions of a file; return whether other files could be imported."""
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
            show.done(await import_session(client.session(name), recording, model, show.add))
        except CannotImport as error:
            show.failed(str(error))
        except IdempotencyConflictError as error:
            show.failed(str(_conflict(name, error.detail)))
        except PalimpsestError as error:
            show.failed(f"session {name}: {': '.join(reason_of(error))}")
            if isinstance(error, _FATAL):
                return False
    return True


async def import_session(
    session: AsyncSession, recording: Recording, model: str | None, on_batch: Callable[[int], None]
) -> ImportedSession:
    """Append the events of a recording that a session does not hold yet.

    Events are matched by their ids. `on_batch` gets the number of events of each request. Raises CannotImport if the
    session begins with another event or holds one of these with other content, or PalimpsestError.
    """
    events = list(events_of(recording))
    is_new = False
    try:
        found = await session.get_session()
    except NotFoundError:
        is_new = True
        found = await session.put_session(model=model or recording.model, metadata=recording.metadata or None)
    known = await _known(session, events) if found.head and events else frozenset()
    on_batch(len(known))
    added = 0
    try:
        for batch in _batches(event for event in events if event.get("id") not in known):
            added += sum(placed.seq > found.head for placed in await _send(session, batch))
            on_batch(len(batch))
    except PalimpsestError:
        if is_new and not added:  # an empty session is of no use
            with suppress(PalimpsestError):
                await session.delete_session()
        raise
    return ImportedSession(session.id, len(events), added, recording.notes)


async def _send(session: AsyncSession, batch: Sequence[Object]) -> list[AppendedEvent]:
    """Append events, in smaller requests if the server refuses one as too large; return the places of the events."""
    try:
        return (await session.append_events(events=cast(Any, batch))).events
    except TooLargeError as error:
        if error.slug != "body-too-large" or len(batch) == 1:
            raise
    half = len(batch) // 2
    return [*await _send(session, batch[:half]), *await _send(session, batch[half:])]


async def _known(session: AsyncSession, events: Sequence[Object]) -> frozenset[Json]:
    """Return the ids of the events that the session holds. Raises CannotImport.

    The log is read, because an append does not find an id that the server made, and erased events must stay erased.
    """
    first = await session.get_event(1)
    if first.id != events[0].get("id"):
        raise CannotImport(
            f"session {session.id} exists and holds something else; name another with --session or --prefix"
        )
    ours = {event.get("id"): event for event in events}
    known = set()
    async for logged in session.list_events(limit=PAGE):
        event = logged.to_dict()
        if (sent := ours.get(event["id"])) is None:
            continue
        stored = {"occurred_at": event["created_at"], **event}
        changed = [name for name, value in sent.items() if stored.get(name) != value]
        if changed and not event.get("redacted"):
            raise _conflict(session.id, f"{', '.join(changed)} of event {event['seq']}, id {event['id']!r}")
        known.add(event["id"])
    return frozenset(known)


def _conflict(session: str, detail: str) -> CannotImport:
    return CannotImport(
        f"session {session} holds an event of this file with other content: {detail}. The file is another one, or what"
        " was imported of it has been changed since; name another session with --session or --prefix"
    )


def _batches(events: Iterable[Object]) -> Iterator[list[Object]]:
    """Yield the events in batches of a moderate size."""
    batch: list[Object] = []
    size = 0
    for event in events:
        chars = len(json.dumps(event))
        if batch and (len(batch) == EVENTS_PER_BATCH_MAX or size + chars > _BATCH_CHARS_MAX):
            yield batch
            batch, size = [], 0
        batch.append(event)
        size += chars
    if batch:
        yield batch
