"""Amazon's event streams (`application/vnd.amazon.eventstream`): binary frames, and the events of replies in them.

A frame has its total length, the length of its headers and a checksum of both, then headers, payload, and a checksum of
all before it.
"""

import base64
import binascii
import struct
import zlib
from collections.abc import Mapping
from typing import Final

from app.core.log.events import Json
from app.core.wire.bodies import JSON_BYTES_MAX, Chunk, parse_object

CONTENT_TYPE: Final = "application/vnd.amazon.eventstream"
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
    frame's, the rest of the stream is one chunk to read, for which `frame_object` raises, and pieces.
    """

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


def frame_object(frame: bytes) -> Mapping[str, Json] | None:
    """Return the event of a reply in a frame, an exception as an event of the type `error`; None for any other frame.

    Raises BadFrame or TooLarge.
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
