"""Bodies of calls and responses: JSON objects, whole or within bounds, and server-sent events."""

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from app.core.log.events import Json, more_values

JSON_BYTES_MAX: Final = 2 * 1024 * 1024
"""Size of the largest JSON text of an upstream that is parsed: an event of a stream, or a whole response."""
JSON_VALUES_MAX: Final = 50_000
"""Values in the largest such text; Python parses that number in about ten milliseconds."""
_SPACE: Final = re.compile(r"[ \t\n\r]*")
_DECODER: Final = json.JSONDecoder()
_END: Final = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r(?!\n))")
_DATA: Final = re.compile(rb"(?:(?<=[\r\n])|\A)data:[^\r\n]*")
_END_BYTES_MAX: Final = 4


class NoObject(ValueError):
    """The text is not a JSON object."""


class TooLarge(ValueError):
    """A JSON text exceeds the bounds, so it is not parsed."""


@dataclass(frozen=True, slots=True)
class Member:
    """A member of an object: its name and value, its offset in the text, and the offsets of its value."""

    name: str
    value: Json
    begin: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Body:
    """A JSON object as text, whose members can be replaced without changing a byte of the others."""

    text: str
    members: tuple[Member, ...]

    @property
    def value(self) -> dict[str, Json]:
        """The object; the last of several members with one name counts, as in JSON parsers."""
        return {member.name: member.value for member in self.members}

    def with_members(self, replaced: Mapping[str, str], *, without: frozenset[str] = frozenset()) -> str:
        """Return the text with some values replaced (by JSON) and some members removed; new members are appended."""
        pieces: list[str] = []
        for member in self.members:
            if member.name in without:
                continue
            text = replaced.get(member.name)
            value = self.text[member.start : member.end] if text is None else text
            pieces.append(self.text[member.begin : member.start] + value)
        known = {member.name for member in self.members}
        pieces += [f"{json.dumps(name)}:{text}" for name, text in replaced.items() if name not in known]
        return "{" + ",".join(pieces) + "}"

    def read_with(self, name: str, value: Json) -> "Body":
        """Return the body with another value of a member, to be read, not sent: the text keeps the original."""
        return replace(
            self, members=tuple(replace(one, value=value) if one.name == name else one for one in self.members)
        )

    def raw(self, name: str) -> str | None:
        """Return the text of a member's value; None if there is no such member."""
        return next((self.text[one.start : one.end] for one in reversed(self.members) if one.name == name), None)


def parse(raw: bytes) -> Body:
    """Find the members of a JSON object. Raises NoObject."""
    try:
        text = raw.decode("utf-8-sig")
        return Body(text, tuple(_members(text)))
    except (ValueError, RecursionError) as error:
        raise NoObject(str(error)) from None


def _members(text: str) -> Sequence[Member]:
    found: list[Member] = []
    at = _skip_sign(text, 0, "{")
    while text[at : at + 1] != "}":
        begin = at = _skip_sign(text, at, ",") if found else at
        if text[at : at + 1] != '"':
            raise NoObject(f"a name was expected at {at}")
        name, at = _DECODER.raw_decode(text, at)
        start = _skip_sign(text, at, ":")
        value, end = _DECODER.raw_decode(text, start)
        found.append(Member(name, value, begin, start, end))
        at = _skip(text, end)
    if _skip(text, at + 1) != len(text):
        raise NoObject(f"more text behind the object at {at + 1}")
    return found


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return at if found is None else found.end()


def _skip_sign(text: str, at: int, sign: str) -> int:
    """Return the offset after a sign, with the space on both sides of it."""
    at = _skip(text, at)
    if text[at : at + 1] != sign:
        raise NoObject(f"{sign!r} was expected at {at}")
    return _skip(text, at + 1)


def parse_object(text: bytes | str) -> Mapping[str, Json] | None:
    """Parse a JSON object of an upstream; None for anything else. Raises TooLarge."""
    raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if len(raw) > JSON_BYTES_MAX:
        raise TooLarge(f"it has more than {JSON_BYTES_MAX} bytes of JSON")
    if more_values(raw.decode("latin-1"), JSON_VALUES_MAX):
        raise TooLarge(f"it has more than {JSON_VALUES_MAX} values")
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def object_or_none(text: bytes | str) -> Mapping[str, Json] | None:
    """Parse a JSON object; None for anything else, and for one above the bounds."""
    try:
        return parse_object(text)
    except TooLarge:
        return None


class Chunk(NamedTuple):
    """A whole event with the blank line after it, or (`event` is false) a piece of one that is too large to read."""

    raw: bytes
    event: bool


class Splitter:
    """Splits a stream of server-sent events, which arrives in arbitrary pieces; no byte is lost or changed.

    An event of more than JSON_BYTES_MAX is returned in pieces, and counted in `oversized`.
    """

    def __init__(self) -> None:
        self.oversized = 0
        self._rest = bytearray()
        self._searched = 0
        self._inside = False

    def feed(self, piece: bytes) -> list[Chunk]:
        """Return the events that are now complete, and pieces of those that are too large."""
        rest = self._rest
        rest += piece
        chunks: list[Chunk] = []
        start, search = 0, self._searched
        while (found := _END.search(rest, search)) is not None:
            if found.end() == len(rest) and rest[-1:] == b"\r":  # a line feed may belong to it
                break
            chunks.append(Chunk(bytes(rest[start : found.end()]), not self._inside))
            self._inside = False
            start = search = found.end()
        del rest[:start]
        if len(rest) > JSON_BYTES_MAX or (self._inside and len(rest) > _END_BYTES_MAX):
            self.oversized += not self._inside
            self._inside = True
            keep = len(rest) - _END_BYTES_MAX  # the end of the event may have begun
            chunks.append(Chunk(bytes(rest[:keep]), event=False))
            del rest[:keep]
        self._searched = max(0, len(rest) - _END_BYTES_MAX)
        return chunks

    def end(self) -> Chunk:
        """Return the bytes after the last complete event; nothing may follow."""
        rest = bytes(self._rest)
        self._rest.clear()
        return Chunk(rest, not self._inside)


def event_object(event: bytes) -> Mapping[str, Json] | None:
    """Return the JSON object in an event's data; None for comments, end markers and other data.

    Raises TooLarge.
    """
    if event.count(b"\n") + event.count(b"\r") > JSON_VALUES_MAX:
        raise TooLarge(f"it has more than {JSON_VALUES_MAX} lines")
    text = event_text(event)
    return parse_object(text) if text.startswith(b"{") else None


def event_text(event: bytes) -> bytes:
    """Return the data of an event."""
    return b"\n".join(line[5:].removeprefix(b" ") for line in _DATA.findall(event))


def with_event_text(event: bytes, text: str) -> bytes:
    """Return an event with JSON in place of the JSON in its data; its other bytes stay."""
    lines = itertools.chain([b"data: " + text.encode()], itertools.repeat(b"data:"))
    return _DATA.sub(lambda _: next(lines), event)
