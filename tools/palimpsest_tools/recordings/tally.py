"""Lenient readers of a log's values, and the count of its lines that were not understood."""

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from app.core.lexicon.times import is_time, parse_time, to_seconds
from app.core.log.events import Json
from palimpsest_tools.recordings.checks import numbered_lines, parse_json
from palimpsest_tools.recordings.recording import MalformedRecording, Object

NOT_AN_OBJECT: Final = "no JSON object"
_KINDS_NAMED: Final = 8
_MILLISECONDS: Final = 1000.0


class Tally:
    """The number of lines (or other `items` of a file) that a reader did not understand, by their kind."""

    def __init__(self, items: str = "line") -> None:
        self._items = items
        self._counts: Counter[str] = Counter()

    def add(self, kind: str) -> None:
        """Count a line of a kind."""
        self._counts[kind] += 1

    def notes(self) -> tuple[str, ...]:
        """Return the note for the user; none if everything was understood."""
        if not self._counts:
            return ()
        named = ", ".join(f"{kind} {count}" for kind, count in self._counts.most_common(_KINDS_NAMED))
        more = ", ..." if len(self._counts) > _KINDS_NAMED else ""
        kinds = f"{len(self._counts)} kind{'s' if len(self._counts) > 1 else ''}"
        return (f"not understood: {counted(self._counts.total(), self._items)} of {kinds} ({named}{more})",)


def counted(number: int, item: str) -> str:
    """Return a number with its noun, such as `2 lines`."""
    return f"{number} {item}{'' if number == 1 else 's'}"


def compaction_notes(compactions: int) -> tuple[str, ...]:
    """Return the note about an agent's own compactions; none if it made none."""
    if not compactions:
        return ()
    times = "once" if compactions == 1 else f"{compactions} times"
    return (f"compacted {times} by the agent itself; the log holds everything, and not the agent's summary",)


def objects_of(text: str, tally: Tally) -> Iterator[Object]:
    """Yield the objects of JSON lines. Any other line, such as a last one that was cut off, is counted."""
    for _, line in numbered_lines(text):
        try:
            value = parse_json(line)
        except MalformedRecording:
            value = None
        if isinstance(value, dict):
            yield value
        else:
            tally.add(NOT_AN_OBJECT)


def object_at(value: Json, *names: str) -> Object:
    """Return the object at a path of fields; an empty one if there is none."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def list_at(value: Json) -> list[Any]:
    """Return a list; an empty one for any other value."""
    return value if isinstance(value, list) else []


def text_at(value: Json) -> str | None:
    """Return a text that is not empty; None for any other value."""
    return value if isinstance(value, str) and value else None


def tokens_at(value: Json) -> int | None:
    """Return a number of tokens; None for any other value."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return int(value) if number and 0 <= value < 2**31 else None


def seconds(value: Json) -> float | None:
    """Return an RFC 3339 time in epoch seconds; None for any other value."""
    try:
        return to_seconds(parse_time(value)) if isinstance(value, str) else None
    except ValueError:
        return None


def seconds_of_milliseconds(value: Json) -> float | None:
    """Return a time in epoch milliseconds in epoch seconds; None for any other value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    at = value / _MILLISECONDS
    return at if is_time(at) else None
