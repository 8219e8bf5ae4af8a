"""The names in a span, weighted by the likelihood that each is used again.

Measured on recorded coding sessions, away from their compactions: later calls mostly use names from short arguments of
earlier calls; then names that were defined, repeated, or named in messages. A weight is a sum over the events that hold
the name, and each share fades with the number of later events. So the weights of two adjacent spans add up to about the
weights of their union, and no event has to be read again.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Final, TypeAlias

from app.core.lexicon.identifiers import (
    DEFINITION,
    NAME_CHARS_MAX,
    NAME_OR_CODE,
    Pattern,
    folders,
    is_folder,
    is_noise,
    is_prose,
    quoted,
    unescaped,
    unnumbered,
)
from app.core.log.event import Event
from app.core.log.events import EventType, Json
from app.core.memory.digest.commands import steps
from app.core.memory.digest.files import command_of

Names: TypeAlias = dict[str, float]

HALF_LIFE: Final = 250
"""Events after which a use counts half. Measured: anything from 100 to 800 gives the same outcome within a percent."""
IDENTIFIERS_MAX: Final = 700
TEXT_CHARS_MAX: Final = 200_000
"""The maximum characters read of one event; names further inside are rarely needed."""
SHORT_ARGUMENT_CHARS: Final = 300

USED, WRITTEN, SAID, ASKED, DEFINED, REPEATED, SEEN = 16.0, 2.0, 2.0, 1.5, 1.5, 1.0, 0.5
"""The contribution of one event to a name's weight: USED in a short argument, WRITTEN in a long one, SAID by
anyone but the user, ASKED by the user; in a result DEFINED, REPEATED or merely SEEN."""

_NAMED_NUMBER: Final = Pattern(
    r"(?<![\w.-])[A-Za-z][\w.-]{1,40}+(?: ?[=:] ?|=)[\"']?\d[\d.,]{0,20}\b(?![\w/:-])"  # not the year of a date
)
_LINE_OF: Final = re.compile(r"(?:(?<=\.\w)|(?<=\.\w\w)|(?<=\.\w\w\w)|(?<=\.\w{4}))-\d{1,7}(?:-.*)?$", re.S)
"""`-27-` and the code after a file's name, as `grep -A` prints them."""
_PLACES: Final = re.compile(r"offset|limit|lines?\b|range|column|page", re.I)
"""Arguments whose numbers are places in a file, which mean nothing without the file."""
_PLAIN_NUMBER: Final = re.compile(r"\d{1,5}(?:[.,]\d+)?|\d{4}-\d\d-\d\d(?:[T ].*)?", re.S)
"""Short numbers, decimals, dates and times: no names if results merely show them."""
_LOCAL: Final = re.compile(r"[a-z][a-z0-9]*[A-Z]\w*|[a-z]+(?:_[a-z0-9]+)+")
"""The form of variables and fields, in some languages of functions too."""
_KEY: Final = re.compile(r'"([A-Za-z_][\w-]{0,60})"\s{0,4}:')
_NO_NAME: Final = re.compile(r"[A-Z]{2,5}s|L\d{1,5}")
"""`APIs`, and a line in an address."""
_HASH: Final = re.compile(r"[0-9a-f-]+")
_MISSING: Final = re.compile(
    r"(?:<tool_use_error>)?\s{0,4}(?:error: )?(?:(?:file|path) does not exist|no such file|directory not found)", re.I
)
"""The beginning of the result of a call that named a file which is not there."""
_UUID: Final = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")

_PATH, _RELATIVE, _ADDRESS, _NUMBER, _HEX, _WORD, _CAMEL = 2.5, 1.5, 0.2, 0.3, 0.5, 1.0, 0.7
"""The factor of a name's form: the likelihood that it is used again, all else being equal."""
_UNUSED_LOCAL: Final = 0.5
"""The factor of a local name in results alone. Measured: 0.3 to 0.5 keep more of the values needed later."""
_RARE: Final = 0.1
"""The factor of names that are hardly ever used again."""
_RARELY_USED: Final = re.compile(
    r"/(?:usr|etc|s?bin|snap|opt|lib\d{0,2}|proc|sys|var/(?:log|lib|run))(?:/.*)?|v?\d+(?:\.\d+)+"
    r"|\d{4}-\d\d-\d\d(?:[T ].*)?|.*\.\w{1,5}:\d+|\d{4,}(?<!000)",
    re.S,
)
"""Files of the system, versions, dates, lines of files, and arbitrary numbers."""


def is_missing(result: str) -> bool:
    """Return whether a result, of which the first line is enough, says that the file of its call does not exist."""
    return _MISSING.match(result) is not None


def weigh(events: Sequence[Event]) -> Names:
    """Return the names in the events with their weights as of the last event. Takes time linear in the events' text."""
    names: Names = {}
    used: set[str] = set()
    known: set[str] = set()
    share, fading = 1.0, 0.5 ** (1 / HALF_LIFE)
    missing: set[int] = set()
    for event in reversed(events):
        if event.type is EventType.TOOL_RESULT and event.call_seq and is_missing(event.text):
            missing.update((event.seq, event.call_seq))
        if event.seq in missing:
            share *= fading
            continue
        if event.type is EventType.TOOL_CALL:
            used.update(_operands(event))
        used.update(quoted(event.text[:TEXT_CHARS_MAX]))
        for name, worth in _weighed_names(event):
            names[name] = names.get(name, 0.0) + worth * share
            if worth > REPEATED:
                known.add(name)
        share *= fading
    _drop_prose(names, used)
    _join_ids(names)
    _weaken_merely_seen(names, known)
    rare = {name: _RARE for name in names if _RARELY_USED.fullmatch(name)}
    return {name: weight * rare.get(name, 1.0) * _form_factor(name) for name, weight in names.items()}


def _weaken_merely_seen(names: Names, known: Set[str]) -> None:
    """Remove the numbers and weaken the local names that are not `known` from a call, a message or a definition."""
    for name in [name for name in names if name not in known]:
        if _PLAIN_NUMBER.fullmatch(name):
            del names[name]
        elif _LOCAL.fullmatch(name):
            names[name] *= _UNUSED_LOCAL


def _operands(call: Event) -> Iterator[str]:
    """Yield the words of a call's command, or its arguments of one word."""
    command = command_of(call.tool or "", call.arguments)
    if command is not None:
        for step in steps(command):
            yield from step.words
    else:
        yield from (text for text in strings(call.arguments) if " " not in text)


def _drop_prose(names: Names, used: Set[str]) -> None:
    """Remove words joined by slashes, such as `read/write`, that nothing in the span shows to be a path."""
    doubtful = {name for name in names if "/" in name and is_prose(name)}
    known = folders((*names, *(name for name in used if len(name) <= NAME_CHARS_MAX)))
    for name in doubtful:
        if name not in used and not is_folder(name, known):
            del names[name]


def _join_ids(names: Names) -> None:
    """Add the weight of a shortened id, or of a part of one, to the id."""
    for whole in [name for name in names if "-" in name and _UUID.search(name)]:
        parts = whole.rsplit("/", 1)[-1].split("-")
        for part in (*parts, "-".join(parts[:3])):
            if part != whole and len(part) > 3 and _HASH.fullmatch(part):
                names[whole] += names.pop(part, 0.0)


def decay(names: Mapping[str, float], events: int) -> Names:
    """Return the weights after `events` more events."""
    share: float = 0.5 ** (events / HALF_LIFE)
    return {name: weight * share for name, weight in names.items()}


def heaviest(names: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
    """Return the IDENTIFIERS_MAX heaviest names, the heaviest first, with weights rounded to four digits."""
    ranked = sorted(names.items(), key=lambda item: (-item[1], item[0]))[:IDENTIFIERS_MAX]
    return tuple((name, float(f"{weight:.4g}")) for name, weight in ranked)


def names_in(text: str) -> dict[str, int]:
    """Return the distinct names in a text and the number of times each occurs, in the text's order."""
    return _counts(unescaped(text[:TEXT_CHARS_MAX]))


def _counts(text: str) -> dict[str, int]:
    """Return the distinct names in a text without escape sequences and their counts, in the text's order."""
    counts: dict[str, int] = {}
    for name, count in Counter(NAME_OR_CODE.findall(unnumbered(text))).items():
        if len(name) <= NAME_CHARS_MAX and not name.startswith("/dev/"):
            name = name.rstrip(".,:;-") if name[-1] in ".,:;-" else name
            name = _LINE_OF.sub("", name) if "/" in name and "-" in name else name
            name = name.removeprefix("./")
            if name and not (is_noise(name) or _NO_NAME.fullmatch(name)):
                counts[name] = counts.get(name, 0) + count
    for name in [name for name in counts if name.startswith("a/") and f"b/{name[2:]}" in counts]:
        # The two sides of a diff are one file.
        counts[name[2:]] = counts.get(name[2:], 0) + counts.pop(name) + counts.pop(f"b/{name[2:]}")
    return counts


def strings(value: Json) -> Iterator[str]:
    """Yield the strings inside a JSON value in order, without keys, and its integers of four digits or more."""
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
        defined, keys = set(DEFINITION.findall(text)), _keys(text)
        return [
            (name, DEFINED if name in defined else REPEATED if count > 1 else SEEN)
            for name, count in _counts(text).items()
            if count > keys.get(name, 0)
        ]
    worth = ASKED if event.type is EventType.USER_MESSAGE else SAID
    return [(name, worth) for name in _names_and_values(event.text)] if event.rendered else ()


def _keys(text: str) -> Mapping[str, int]:
    """Return the keys of a result in JSON and their counts, which say nothing about this result."""
    whole = text.strip()
    return Counter(_KEY.findall(whole)) if whole[:1] + whole[-1:] in ("{}", "[]") else {}


def _argument_names(arguments: Mapping[str, Json]) -> Iterator[tuple[str, float]]:
    worth: Names = {}
    for text in strings({name: value for name, value in arguments.items() if not _PLACES.search(name)}):
        short = len(text) <= SHORT_ARGUMENT_CHARS
        for name in _names_and_values(text) if short else names_in(text):
            worth[name] = max(worth.get(name, 0.0), USED if short else WRITTEN)
    yield from worth.items()


def _names_and_values(text: str) -> Iterator[str]:
    """Yield the names in a text, then its numbers together with their names, such as `limit=40`."""
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
