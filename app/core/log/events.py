"""The events that an agent may log, and their canonical JSON.

A `Draft` is a valid event that has no place in a log yet. Its `body` holds the caller's fields in one fixed order,
without unset ones. It is made once, at append, and stored unchanged.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Final, TypeAlias, get_type_hints

from app.core import dataclass

Json: TypeAlias = Any
"""A value as `json.loads` returns it. Treated as frozen everywhere."""

Part: TypeAlias = Mapping[str, Json]
"""One piece of content: `{"type": "text", "text": ...}`, an image, reasoning, or a provider's own type, kept opaque."""

EVENTS_PER_BATCH_MAX: Final = 1000
ID_CHARS_MAX: Final = 256
NAME_CHARS_MAX: Final = 256
PATH_CHARS_MAX: Final = 4096
NESTING_MAX: Final = 64
"""The deepest nesting of JSON that is accepted, because a parser's stack is finite."""

VALUES_MAX: Final = 200_000
"""The maximum number of values for which JSON inside a text is parsed; longer JSON stays text."""

SESSION_ID_PATTERN: Final = r"^[A-Za-z0-9._:@-]{1,128}$"


class EventType(StrEnum):
    """Type of an event. The set is closed and part of the public contract."""

    SYSTEM_PROMPT = "system.prompt"
    TOOLS = "tools"
    USER_MESSAGE = "user.message"
    ASSISTANT_MESSAGE = "assistant.message"
    TOOL_CALL = "tool.call"
    TOOL_RESULT = "tool.result"
    SYSTEM_MESSAGE = "system.message"
    AGENT_NOTE = "agent.note"
    TURN_START = "turn.start"
    TURN_END = "turn.end"
    ANNOUNCE = "announce"


BOOKKEEPING: Final = frozenset({EventType.TURN_START, EventType.TURN_END})
"""Types that never reach a model."""

PREFIX: Final = frozenset({EventType.SYSTEM_PROMPT, EventType.TOOLS})
"""Types at the head of the context; the newest event of each type replaces the one before."""

ASSISTANT_SIDE: Final = frozenset({EventType.ASSISTANT_MESSAGE, EventType.TOOL_CALL})
"""Types that the model writes."""

DIALOGUE: Final = frozenset({EventType.USER_MESSAGE, EventType.ASSISTANT_MESSAGE})
"""The messages of the user and the model."""

SPEAKERS: Final = DIALOGUE | ASSISTANT_SIDE
"""Types that the user or the model writes."""

BRIDGES: Final = frozenset({EventType.SYSTEM_MESSAGE, EventType.AGENT_NOTE, EventType.ANNOUNCE})
"""Types that introduce the event after them and stay with it."""

TOOL_USE: Final = (EventType.TOOL_CALL, EventType.TOOL_RESULT)


class BrokenRule(Exception):
    """A broken rule; the message describes it."""


@dataclass(frozen=True, slots=True)
class FieldRule:
    """The rule for a field: `check` raises BrokenRule for an invalid value. The bounds are for the OpenAPI document."""

    check: Callable[[Json], None]
    chars_max: int | None = None
    least: int | None = None


def _rule(
    accepts: Callable[[Json], bool], words: str, chars_max: int | None = None, least: int | None = None
) -> FieldRule:
    def check(value: Json) -> None:
        """Raise BrokenRule for a value that the field does not accept, or that is nested too deeply."""
        if not accepts(value):
            raise BrokenRule(f"must be {words}")
        if isinstance(value, (Mapping, list)) and too_deep(value):
            raise BrokenRule(f"is nested deeper than {NESTING_MAX} levels")

    return FieldRule(check, chars_max, least)


def _text(chars_max: int) -> FieldRule:
    words = f"text of 1 to {chars_max} characters"
    return _rule(lambda value: isinstance(value, str) and 1 <= len(value) <= chars_max, words, chars_max)


def _key(chars_max: int) -> FieldRule:
    """Return the rule for a field that is used in look-ups: the database must accept its text."""
    text = _text(chars_max)

    def check(value: Json) -> None:
        text.check(value)
        if readable(value) != value:
            raise BrokenRule("must hold neither NUL nor lone surrogates")

    return FieldRule(check, chars_max)


_ANY_TEXT: Final = _rule(lambda value: isinstance(value, str), "text")
_FLAG: Final = _rule(lambda value: isinstance(value, bool), "true or false")
_OBJECT: Final = _rule(lambda value: isinstance(value, Mapping), "an object")
_PARTS: Final = _rule(lambda value: isinstance(value, (str, list)), "text or a list of parts")
_ARGUMENTS: Final = _rule(lambda _: True, "what a model wrote, an object or not")
_POSITIVE: Final = _rule(
    lambda value: isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 2**31 - 1,
    "a whole number of 1 or more",
    least=1,
)


def _content(value: Json) -> None:
    for number, part in enumerate(value if isinstance(value, list) else ()):
        if not isinstance(part, Mapping):
            raise BrokenRule(f"part {number} must be an object")
        if "type" in part and not isinstance(part["type"], str):
            raise BrokenRule(f"part {number}: type must be text")
    _PARTS.check(value)


def _time(value: Json) -> None:
    """Accept text and numbers; a value that is not an RFC 3339 time is stored but not used as a time."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise BrokenRule("must be an RFC 3339 time")
    if isinstance(value, str):
        _text(NAME_CHARS_MAX).check(value)


@dataclass(frozen=True, slots=True)
class Draft:
    """A valid event, not yet in a log. Each field has the rule for its values; the API's document describes it.

    `native` is set for events from provider-native messages. It holds the parts of the message that the neutral fields
    cannot express, so that the same format can restore the message exactly (`core/render/formats`).
    """

    type: EventType
    id: Annotated[str | None, _key(ID_CHARS_MAX)] = None
    turn_id: Annotated[str | None, _key(ID_CHARS_MAX)] = None
    author: Annotated[str | None, _key(NAME_CHARS_MAX)] = None
    content: Annotated[str | Sequence[Part] | None, FieldRule(_content)] = None
    call_id: Annotated[str | None, _key(ID_CHARS_MAX)] = None
    tool: Annotated[str | None, _key(NAME_CHARS_MAX)] = None
    arguments: Annotated[Json, _ARGUMENTS] = None
    is_error: Annotated[bool | None, _FLAG] = None
    path: Annotated[str | None, _text(PATH_CHARS_MAX)] = None
    mime: Annotated[str | None, _text(NAME_CHARS_MAX)] = None
    pinned: Annotated[bool | None, _FLAG] = None
    ttl_turns: Annotated[int | None, _POSITIVE] = None
    ttl_seconds: Annotated[int | None, _POSITIVE] = None
    replacement: Annotated[str | None, _ANY_TEXT] = None
    supersedes: Annotated[str | None, _key(ID_CHARS_MAX)] = None
    occurred_at: Annotated[str | None, FieldRule(_time)] = None
    metadata: Annotated[Mapping[str, Json] | None, _OBJECT] = None
    native: Annotated[Mapping[str, Json] | None, _OBJECT] = None

    def body(self) -> dict[str, Json]:
        """Return the event as it is stored: its fields in the order of the class, without unset ones."""
        fields = {name: getattr(self, name) for name in FIELDS}
        return {"type": self.type.value} | {k: v for k, v in fields.items() if v is not None}


FIELDS: Final = tuple(name for name in Draft.__dataclass_fields__ if name != "type")
INPUT_FIELDS: Final = frozenset(FIELDS) | {"type"}
RULES: Final[Mapping[str, FieldRule]] = {
    name: hint.__metadata__[0] for name, hint in get_type_hints(Draft, include_extras=True).items() if name in FIELDS
}
"""The rule for each field except `type`."""


SOURCES: Final = "sources"
ANNOUNCE: Final = "announce"
LAYERS: Final[tuple[str, ...]] = (SOURCES, ANNOUNCE)
"""Content shown after the conversation while an agent works, in this order; it is not part of the log."""


json_pieces: Final = json.encoder.c_make_encoder(  # type: ignore[attr-defined]  # of no stub
    None, json.JSONEncoder().default, json.encoder.encode_basestring, None, ":", ",", False, False, False
)
"""Encode a value as pieces of JSON without whitespace (second argument: 0); lone surrogates stay as they are. The
library's encoder makes one of these for each text."""
SURROGATE: Final = re.compile("[\ud800-\udfff]")
_UNREADABLE: Final = re.compile("[\x00\ud800-\udfff]")
REPLACEMENT: Final = "\ufffd"
"""The replacement for a character that no text may hold."""


NO_PROMPT: Final = Draft(EventType.SYSTEM_PROMPT, content="", native={"format": "none"})
"""A mark in the log that a client no longer has a system prompt. Models are shown nothing in its place."""


def canonical_json(value: Json) -> str:
    """Return the canonical JSON text of a value: no whitespace, keys in insertion order, non-ASCII unescaped.

    Lone surrogates are escaped. Raises ValueError for NaN and infinities.
    """
    text = "".join(json_pieces(value, 0))
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            text = SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    return text


_ESCAPES: Final = re.compile(r"\\(?:u(0000|d[89a-f][0-9a-f]{2})|.)")


def unreadable(text: str) -> bool:
    """Return whether a canonical JSON text holds NUL or a lone surrogate."""
    return ("\\u0000" in text or "\\ud" in text) and any(found[1] for found in _ESCAPES.finditer(text))


def readable(text: str) -> str:
    """Return the text with REPLACEMENT for NULs and lone surrogates, so that the database and every API accept it."""
    if "\x00" not in text:
        if text.isascii():
            return text
        try:
            text.encode()
            return text
        except UnicodeEncodeError:
            pass
    return _UNREADABLE.sub(REPLACEMENT, text)


def more_values(text: str, most: int = VALUES_MAX) -> bool:
    """Return whether a JSON text holds more values than `most`, estimated from its brackets and commas outside strings.

    The text is not parsed: each step is one pass over it, and most texts need only the first.
    """
    if len(text) <= most or text.count("[") + text.count("{") + text.count(",") <= most:
        return False
    plain = text.replace("\\\\", "").replace('\\"', "") if "\\" in text else text
    if plain.count('"') > 4 * most:  # a value is a string at most, and has one for its name
        return True
    outside = "".join(plain.split('"')[::2])  # the text between strings
    return outside.count("[") + outside.count("{") + outside.count(",") > most


def check_values(text: str) -> str:
    """Return the JSON text. Raises ValueError for one with more than VALUES_MAX values."""
    if more_values(text):
        raise ValueError(f"holds more than {VALUES_MAX} values")
    return text


def finite(text: str) -> float | str:
    """Return the float that a text holds, or the text itself if the number is too large for a float."""
    value = float(text)
    return value if math.isfinite(value) else text


_DECODER: Final = json.JSONDecoder(parse_constant=str, parse_float=finite)


def read_json(text: str) -> Json:
    """Parse JSON text into a value that can be written as JSON again.

    Escaped lone surrogates become REPLACEMENT; NaN, infinities and numbers too large for a float become text. Raises
    ValueError for invalid JSON and for more than VALUES_MAX values, RecursionError for text that is nested too deeply.
    """
    value: Json = _DECODER.decode(check_values(text))
    if "\\ud" in text.lower():
        value = json.loads("".join(json_pieces(value, 0)).encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
    return value


def _has_constants(text: str) -> bool:
    """Return whether a valid JSON text has NaN or an infinity outside its strings."""
    found: list[str] = []
    if "NaN" in text or "Infinity" in text:
        json.loads(text, parse_constant=found.append)
    return bool(found)


INVALID_ARGUMENTS: Final = "invalid_arguments"
"""The key that holds arguments that are not a JSON object."""


def read_arguments(text: str) -> tuple[Mapping[str, Json], bool]:
    """Return the object that `arguments_object` makes of a text, and whether the text is strict JSON of that object.

    Every provider can read strict JSON. A text with more than VALUES_MAX values does not count as strict.
    """
    if text.strip() in ("", "null"):
        return {}, False
    try:
        value = read_json(text)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, Mapping) and not too_deep(value):
        return value, not _has_constants(text)
    return {INVALID_ARGUMENTS: text}, False


def arguments_object(arguments: Json) -> Mapping[str, Json]:
    """Return a call's arguments as an object that can be written as JSON again.

    Other values, objects nested too deeply, and texts of more than VALUES_MAX values are put under INVALID_ARGUMENTS.
    """
    if isinstance(arguments, str):
        return read_arguments(arguments)[0]
    if isinstance(arguments, Mapping) and not too_deep(arguments):
        return arguments
    return {} if arguments is None else {INVALID_ARGUMENTS: canonical_json(arguments)}


_PLAIN: Final = frozenset({str, int, float, bool, type(None)})


def too_deep(value: Json, levels: int = NESTING_MAX) -> bool:
    """Return whether an object or list is nested deeper than `levels`."""
    nested: list[Json] = [value]
    for _ in range(levels):
        nested = [
            child
            for node in nested
            for child in (node if isinstance(node, list) else node.values())
            if type(child) not in _PLAIN and isinstance(child, (list, dict, Mapping))  # isinstance with Mapping is slow
        ]
        if not nested:
            return False
    return True
