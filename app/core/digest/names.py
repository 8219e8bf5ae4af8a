"""The names in a span, weighted by how likely each is to be used again.

Measured on recorded coding sessions, away from their compactions: later calls name above all what earlier calls named
in short arguments; then what was defined, repeated, or named in messages. A weight is a sum over the events that hold
the name, and each share fades with the number of later events. So the weights of two adjacent spans add up to the
weights of their union, and no event has to be read again.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from app.core.lexicon.escapes import unescaped
from app.core.lexicon.identifiers import DEFINITION, NAME_CHARS_MAX, NAME_OR_CODE
from app.core.lexicon.patterns import Pattern
from app.core.log.event import Event
from app.core.log.events import EventType, Json

Names: TypeAlias = dict[str, float]

HALF_LIFE: Final = 250
"""Events after which a use counts half. Measured: anything from 100 to 800 gives the same outcome within a percent."""
IDENTIFIERS_MAX: Final = 700
TEXT_CHARS_MAX: Final = 200_000
"""The most characters read of one event; names further inside are rarely needed."""
SHORT_ARGUMENT: Final = 300

USED, WRITTEN, SAID, ASKED, DEFINED, REPEATED, SEEN = 16.0, 2.0, 2.0, 1.5, 1.5, 1.0, 0.5
"""What one event adds to a name's weight: USED in a short argument, WRITTEN in a long one, SAID by the assistant, ASKED
by the user; in a result DEFINED, REPEATED or merely SEEN."""

_NAMED_NUMBER: Final = Pattern(r"(?<![\w.-])[A-Za-z][\w.-]{1,40}+(?: ?[=:] ?|=)[\"']?\d[\d.,]{0,20}\b")
_GUTTER: Final = re.compile(r"^(?: {1,8}\d{1,7}\t| {0,8}\d{1,7}→)", re.M)
"""Line numbers before a file's lines."""
_LINE_OF: Final = re.compile(r"(?:(?<=\.\w)|(?<=\.\w\w)|(?<=\.\w\w\w)|(?<=\.\w{4}))-\d{1,7}(?:-.*)?$", re.S)
"""`-27-` and the code after a file's name, as `grep -A` prints them."""
_HASH: Final = re.compile(r"[0-9a-f-]+")

_PATH, _RELATIVE, _ADDRESS, _NUMBER, _HEX, _WORD, _CAMEL = 2.5, 1.5, 0.2, 0.3, 0.5, 1.0, 0.7
"""How likely a name is used again by its form, all else being equal."""


def weigh(events: Sequence[Event]) -> Names:
    """The names in the events with their weights as of the last event. Takes time linear in the events' text."""
    names: Names = {}
    share, fading = 1.0, 0.5 ** (1 / HALF_LIFE)
    for event in reversed(events):
        for name, worth in _weighed_names(event):
            names[name] = names.get(name, 0.0) + worth * share
        share *= fading
    return {name: weight * _form_factor(name) for name, weight in names.items()}


def decayed(names: Mapping[str, float], events: int) -> Names:
    """The weights after `events` more events."""
    share: float = 0.5 ** (events / HALF_LIFE)
    return {name: weight * share for name, weight in names.items()}


def heaviest(names: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
    """The IDENTIFIERS_MAX heaviest names, the heaviest first, with weights rounded to four digits."""
    ranked = sorted(names.items(), key=lambda item: (-item[1], item[0]))[:IDENTIFIERS_MAX]
    return tuple((name, float(f"{weight:.4g}")) for name, weight in ranked)


def names_in(text: str) -> dict[str, int]:
    """The distinct names in a text and how often each occurs, in the text's order."""
    return _counts(unescaped(text[:TEXT_CHARS_MAX]))


def _counts(text: str) -> dict[str, int]:
    """The distinct names in a text without escape sequences and how often each occurs, in the text's order."""
    counts: dict[str, int] = {}
    if "\t" in text or "→" in text:
        text = _GUTTER.sub("", text)
    for name, count in Counter(NAME_OR_CODE.findall(text)).items():
        if len(name) <= NAME_CHARS_MAX and not name.startswith("/dev/"):
            name = name.rstrip(".,:;-") if name[-1] in ".,:;-" else name
            name = _LINE_OF.sub("", name) if "/" in name and "-" in name else name
            counts[name] = counts.get(name, 0) + count
    for name in [name for name in counts if name.startswith("a/") and f"b/{name[2:]}" in counts]:
        # The two sides of a diff are one file.
        counts[name[2:]] = counts.get(name[2:], 0) + counts.pop(name) + counts.pop(f"b/{name[2:]}")
    return counts


def strings(value: Json) -> Iterator[str]:
    """The strings inside a JSON value in order, without keys; integers of four or more digits count as strings."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, Mapping):
            stack.extend(reversed(list(item.values())))
        elif isinstance(item, list | tuple):
            stack.extend(reversed(item))
        elif isinstance(item, int) and not isinstance(item, bool) and abs(item) >= 1000:
            yield str(item)


def _weighed_names(event: Event) -> Iterable[tuple[str, float]]:
    if event.type is EventType.TOOL_CALL:
        return _argument_names(event.arguments)
    if event.type is EventType.TOOL_RESULT:
        text = unescaped(event.text[:TEXT_CHARS_MAX])
        defined = set(DEFINITION.findall(text))
        return [
            (name, DEFINED if name in defined else REPEATED if count > 1 else SEEN)
            for name, count in _counts(text).items()
        ]
    worth = ASKED if event.type is EventType.USER_MESSAGE else SAID
    return [(name, worth) for name in _names_and_values(event.text)] if event.rendered else ()


def _argument_names(arguments: Mapping[str, Json]) -> Iterator[tuple[str, float]]:
    worth: Names = {}
    for text in strings(arguments):
        short = len(text) <= SHORT_ARGUMENT
        for name in _names_and_values(text) if short else names_in(text):
            worth[name] = max(worth.get(name, 0.0), USED if short else WRITTEN)
    yield from worth.items()


def _names_and_values(text: str) -> Iterator[str]:
    """The names in a text, then its numbers together with what they are assigned to, such as `limit=40`."""
    text = unescaped(text[:TEXT_CHARS_MAX])
    yield from _counts(text)
    yield from dict.fromkeys(_NAMED_NUMBER.findall(text))


def _form_factor(name: str) -> float:
    if name.startswith("http"):
        return _ADDRESS
    if "/" in name:
        return _PATH if name[0] in "/~" else _RELATIVE
    if name[0].isdigit() and name.replace(".", "").isdigit():
        return _NUMBER
    if _HASH.fullmatch(name):
        return _HEX
    return _WORD if "." in name or "_" in name or not name.isalpha() else _CAMEL
