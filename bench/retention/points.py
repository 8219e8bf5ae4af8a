"""Points at which a recorded agent compacted, and the earlier information that it needed afterwards."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from app.core.log.event import Event
from bench.cost.sessions import session, text_of
from bench.edits import quoted

MODIFYING: Final = frozenset({"edit", "multiedit", "write", "notebookedit"})
PATHS: Final = ("file_path", "path", "notebook_path")
EDITS_WITHIN: Final = 120
"""Messages after a point whose edits count as needs: later ones have read their files again."""


@dataclass(frozen=True, slots=True)
class Need:
    """A value in a call's arguments after the point that had been seen before it.

    `again` means that it was shown once more between the point and the call, so that losing it would not have hurt.
    """

    value: str
    again: bool


@dataclass(frozen=True, slots=True)
class Point:
    """One compaction: the events before it, the files they modified, the later needs, and the agent's own summary.

    `edits` are the texts that edits after it quote to replace them, and that had been seen before it.
    """

    session: str
    at: int
    events: tuple[Event, ...]
    modified: tuple[str, ...]
    needs: tuple[Need, ...]
    summary: str
    edits: tuple[str, ...] = ()


def load(file: Path) -> Iterator[Point]:
    """Load the compaction points of a neutral JSONL file."""
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            yield from points(json.loads(line), number)


def points(value: dict[str, Any], line: int, otherwise: Sequence[int] = ()) -> Iterator[Point]:
    """Yield the points of one line of the file; without compactions, those before the messages `otherwise`."""
    compactions = (value.get("meta") or {}).get("compactions") or [{"at": at} for at in otherwise]
    events = session(value, line).events if compactions else ()
    for compaction in compactions:
        yield _point(value, events, compaction)


def _point(value: Mapping[str, Any], events: Sequence[Event], compaction: Mapping[str, Any]) -> Point:
    at, meta = compaction["at"], value.get("meta") or {}
    needs = [
        Need(used["v"], used["last"] >= at)
        for used in meta.get("grounding") or ()
        if used["first"] < at <= used["i"] and used["v"]
    ]
    seen = tuple(event for event in events if message_of(event) < at)
    return Point(
        session=value["id"],
        at=at,
        events=seen,
        modified=_modified(value["messages"][:at], (meta.get("artifacts") or {}).get("modified") or ()),
        needs=tuple(needs),
        summary=compaction.get("summary") or "",
        edits=tuple(_edits(value["messages"][at : at + EDITS_WITHIN], seen)),
    )


def _edits(messages: Iterable[Mapping[str, Any]], seen: Iterable[Event]) -> Iterator[str]:
    """Yield the texts that edits in these messages quote, and that an event had shown."""
    texts = [text_of(event) for event in seen if event.rendered]
    for message in messages:
        for call in message.get("tool_calls") or ():
            yield from (text for text in quoted(call["arguments"]) if any(text in held for held in texts))


def _modified(messages: Sequence[Mapping[str, Any]], files: Sequence[str]) -> tuple[str, ...]:
    """Return those of the session's modified files that an editing tool had been called on by then."""
    found: dict[str, None] = {}
    for message in messages:
        for call in message.get("tool_calls") or ():
            arguments = call["arguments"]
            arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
            path = next((str(arguments[name]) for name in PATHS if arguments.get(name)), "")
            if call["name"].lower() in MODIFYING and path in files:
                found[path] = None
    return tuple(found)


def message_of(event: Event) -> int:
    """Return the index of the event's message, from an id of the form `m<message>.<part>`; -1 for the prefix."""
    name = str((event.body or {}).get("id", ""))
    return int(name[1:].split(".")[0]) if "." in name else -1
