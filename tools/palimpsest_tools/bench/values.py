"""Values that calls use: names, paths and numbers in the arguments of a tool call that stood in the log before.

They are found by their form alone, and not by the server's own list of names, which decides what its stubs keep.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from app.core.log.event import Event
from app.core.log.events import EventType
from palimpsest_tools.bench.sessions import Value

ARGUMENT_CHARS_MAX: Final = 300
"""Length of the longest argument that is searched: longer ones are texts that the model writes."""
_TOKEN: Final = re.compile(r"[\w./:@~+-]{6,200}")
_SENTENCE_ENDS: Final = ".:,-"
_DISTINCTIVE: Final = re.compile(r"[/_@]|\w\.\w|[a-z][A-Z]|[A-Za-z]\d|\d[A-Za-z]|\d{5}|[A-Z]{2}[a-z]")
"""Forms that words of a sentence do not have: paths, files, camelCase, letters with digits, long numbers."""


def values_in(arguments: Any) -> list[str]:
    """Return the different values in a call's arguments, in their order."""
    found: dict[str, None] = {}
    for text in strings(arguments):
        if len(text) <= ARGUMENT_CHARS_MAX:
            tokens = (token.strip(_SENTENCE_ENDS) for token in _TOKEN.findall(text))
            found |= dict.fromkeys(token for token in tokens if len(token) >= 6 and _DISTINCTIVE.search(token))
    return list(found)


def strings(value: Any) -> Iterator[str]:
    """Yield all texts in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from strings(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from strings(inner)


class Holders:
    """The events of a growing log that hold each value verbatim. An event is searched for a value only once."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._texts: list[str] = []
        self._seqs: dict[str, list[int]] = {}
        self._searched: dict[str, int] = {}

    def add(self, event: Event) -> None:
        """Add the next event."""
        self._events.append(event)
        self._texts.append(event.text)

    def value(self, text: str) -> Value | None:
        """Return a value that the log holds by now; None if the model has not seen it there."""
        seqs = self._seqs.setdefault(text, [])
        for index in range(self._searched.get(text, 0), len(self._events)):
            if text in self._texts[index]:
                seqs.append(self._events[index].seq)
        self._searched[text] = len(self._events)
        if not seqs:
            return None
        only_results = all(self._events[seq - 1].type is EventType.TOOL_RESULT for seq in seqs)
        return Value(text, tuple(seqs), only_results)
