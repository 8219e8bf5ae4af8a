"""Bodies of calls and responses: JSON objects, whole or within bounds, and streams of events.

A stream consists of server-sent events, or of Amazon's binary frames (`application/vnd.amazon.eventstream`). A frame
has its total length, the length of its headers and a checksum of both, then headers, payload, and a checksum of all
before it.
"""

import base64
import binascii
import itertools
import json
import re
import struct
import zlib
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

    @staticmethod
    def read(event: bytes) -> Mapping[str, Json] | None:
        """Return the JSON object in an event's data; None for comments, end markers and others. Raises TooLarge."""
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


FRAME_BYTES_MAX: Final = 24 * 1024 * 1024
"""Bytes of the largest frame, by the format's rules."""
_PRELUDE: Final = struct.Struct("!III")
_CHECKSUM: Final = struct.Struct("!I")
_LEAST: Final = _PRELUDE.size + _CHECKSUM.size
_TEXT: Final = 7
_SIZES: Final[Mapping[int, int]] = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}
"""Bytes of a header's value by its type, for the types of one size."""


class BadFrame(ValueError):
    """A frame breaks the rules of its format; the message says which."""


class FrameSplitter:
    """Splits a stream of frames, which arrives in arbitrary pieces; no byte is lost or changed.

    A frame of more than JSON_BYTES_MAX is returned in pieces, and counted in `oversized`. After a beginning that is no
    frame's, the rest of the stream is one chunk to read, for which `read` raises, and pieces.
    """

    CONTENT_TYPE: Final = "application/vnd.amazon.eventstream"

    def __init__(self) -> None:
        self.oversized = 0
        self._rest = bytearray()
        self._inside = 0
        self._lost = False

    def feed(self, piece: bytes) -> list[Chunk]:
        """Return the frames that are now complete, and pieces of those that are too large."""
        if self._lost:
            return [Chunk(piece, event=False)]
        rest = self._rest
        rest += piece
        chunks: list[Chunk] = []
        start = 0
        while start < len(rest) and (size := self._inside or self._size(start)) is not None:
            if not size:
                self._lost = True
                chunks.append(Chunk(bytes(rest[start:]), event=True))
                start = len(rest)
                break
            large, end = bool(self._inside) or size > JSON_BYTES_MAX, start + size
            if end > len(rest) and not large:
                break
            self.oversized += large and not self._inside
            self._inside = max(0, end - len(rest))
            chunks.append(Chunk(bytes(rest[start:end]), not large))
            start = min(end, len(rest))
        del rest[:start]
        return chunks

    def _size(self, start: int) -> int | None:
        """Return the size of the frame at an offset; None if its beginning is incomplete, 0 if it is no frame's."""
        if len(self._rest) - start < _PRELUDE.size:
            return None
        total: int
        total, headers, checksum = _PRELUDE.unpack_from(self._rest, start)
        right = zlib.crc32(self._rest[start : start + 8]) == checksum
        return total if right and _LEAST + headers <= total <= FRAME_BYTES_MAX else 0

    def end(self) -> Chunk:
        """Return the bytes after the last complete frame; nothing may follow."""
        rest = bytes(self._rest)
        self._rest.clear()
        return Chunk(rest, bool(rest))

    @staticmethod
    def read(frame: bytes) -> Mapping[str, Json] | None:
        """Return the event of a reply in a frame, an exception as an event of the type `error`.

        None for any other frame. Raises BadFrame or TooLarge.
        """
        headers, payload = read_frame(frame)
        kind = headers.get(":message-type")
        if kind == "event":
            value = parse_object(payload) if headers.get(":event-type") == "chunk" else None
            coded = None if value is None else value.get("bytes")
            try:
                return parse_object(base64.b64decode(coded)) if isinstance(coded, str) else None
            except binascii.Error as error:
                raise BadFrame(f"its bytes are not base64: {error}") from None
        if kind not in ("exception", "error"):
            return None
        thrown = kind == "exception"
        code = headers.get(":exception-type" if thrown else ":error-code")
        message = (parse_object(payload) or {}).get("message") if thrown else headers.get(":error-message")
        return {"type": "error", "error": {"type": code, "message": message}}


def read_frame(frame: bytes) -> tuple[dict[str, str], bytes]:
    """Return the headers of a frame that are texts, and its payload. Raises BadFrame."""
    if len(frame) < _LEAST:
        raise BadFrame("the stream ends within a frame")
    total, size, checksum = _PRELUDE.unpack_from(frame)
    if zlib.crc32(frame[:8]) != checksum:
        raise BadFrame("the checksum of a frame's lengths is wrong")
    if total != len(frame) or _LEAST + size > total:
        raise BadFrame("the stream ends within a frame" if len(frame) < total else "a frame's lengths are wrong")
    if zlib.crc32(frame[: -_CHECKSUM.size]) != _CHECKSUM.unpack_from(frame, total - _CHECKSUM.size)[0]:
        raise BadFrame("the checksum of a frame is wrong")
    end = _PRELUDE.size + size
    try:
        return _read_headers(frame[_PRELUDE.size : end]), frame[end : -_CHECKSUM.size]
    except (IndexError, struct.error, UnicodeDecodeError):
        raise BadFrame("a frame's headers cannot be read") from None


def _read_headers(text: bytes) -> dict[str, str]:
    """Return the headers that are texts; one of another type has no meaning in a stream of replies."""
    found: dict[str, str] = {}
    at = 0
    while at < len(text):
        name = text[at + 1 : (at := at + 1 + text[at])].decode()
        kind = text[at]
        at += 1
        if kind in _SIZES:
            at += _SIZES[kind]
            continue
        (size,) = struct.unpack_from("!H", text, at)
        at += 2 + size
        if at > len(text) or kind not in (_TEXT - 1, _TEXT):
            raise IndexError
        if kind == _TEXT:
            found[name] = text[at - size : at].decode()
    return found
