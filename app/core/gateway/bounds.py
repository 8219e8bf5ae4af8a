"""Bounds for reading an upstream's responses, and readers that enforce them."""

import json
import zlib
from collections.abc import Iterator, Mapping
from typing import Final

from app.core.log.events import Json, more_values

ERROR_BYTES_MAX: Final = 64 * 1024
"""Bytes of an error's body that are read, both before and after decompression."""
JSON_BYTES_MAX: Final = 2 * 1024 * 1024
"""Size of the largest JSON text that is parsed: an event of a stream, or a whole response."""
JSON_VALUES_MAX: Final = 50_000
"""Values in the largest JSON text that is parsed; Python parses that number in about ten milliseconds."""
STREAM_BYTES_MAX: Final = 32 * 1024 * 1024
"""Bytes of a stream that are read, after decompression."""
SLICE_BYTES: Final = 16 * 1024
"""Bytes that are decompressed and read before other tasks get a turn."""
_ENCODINGS: Final = frozenset({"gzip", "x-gzip", "deflate"})
_GZIP_OR_ZLIB: Final = 32 + zlib.MAX_WBITS


class Unreadable(Exception):
    """A body cannot be decompressed."""


class TooLarge(ValueError):
    """A JSON text exceeds the bounds, so it is not parsed."""


class Unpacker:
    """Decompresses a body in slices of at most SLICE_BYTES, whatever a piece of it expands to."""

    def __init__(self, encoding: str) -> None:
        """Take the body's Content-Encoding. Raises Unreadable for an unknown one."""
        name = encoding.strip().lower()
        self._unzip = zlib.decompressobj(_GZIP_OR_ZLIB) if name in _ENCODINGS else None
        if self._unzip is None and name not in ("", "identity"):
            raise Unreadable(f"its encoding is {name[:40]!r}")

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Yield the decompressed slices of a piece of the body. Raises Unreadable."""
        if self._unzip is None:
            for start in range(0, len(piece), SLICE_BYTES):
                yield piece[start : start + SLICE_BYTES]
            return
        try:
            # Even without input left there may be output that the limit held back.
            while (found := self._unzip.decompress(piece, SLICE_BYTES)) or self._unzip.unconsumed_tail:
                yield found
                piece = self._unzip.unconsumed_tail
        except zlib.error:
            raise Unreadable("its compression is broken") from None


def unpacked(body: bytes, encoding: str, most: int) -> bytes:
    """Return the first `most` bytes of a body, or of the beginning of one, decompressed; none if it is unreadable."""
    found = bytearray()
    try:
        for piece in Unpacker(encoding).feed(body):
            found += piece
            if len(found) >= most:
                break
    except Unreadable:
        return b""
    return bytes(found[:most])


def parse_object(text: bytes | str) -> Mapping[str, Json] | None:
    """Parse a JSON object; None for anything else. Raises TooLarge."""
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
