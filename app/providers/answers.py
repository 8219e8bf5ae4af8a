"""Answers of providers, unpacked in slices, and limited for the vendors' clients, which read a body whole."""

import zlib
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import httpx2

ANSWER_BYTES_MAX: Final = 2 * 1024 * 1024
"""Maximum bytes of a summarizer's answer, unpacked: many times the longest summary."""
ANSWER_VALUES_MAX: Final = 100_000
"""Maximum brackets, braces and commas in such an answer: the clients make a Python object of each value."""
SLICE_BYTES: Final = 16 * 1024
"""Bytes that are unpacked and read before other tasks get a turn."""
_ENCODINGS: Final = frozenset({"gzip", "x-gzip", "deflate"})
_GZIP_OR_ZLIB: Final = 32 + zlib.MAX_WBITS


class Unreadable(Exception):
    """A body cannot be unpacked."""


class Unpacker:
    """Unpacks a body in slices of at most SLICE_BYTES, whatever a piece of it expands to."""

    def __init__(self, encoding: str) -> None:
        """Take the body's Content-Encoding. Raises Unreadable for an unknown one."""
        name = encoding.strip().lower()
        self._unzip = zlib.decompressobj(_GZIP_OR_ZLIB) if name in _ENCODINGS else None
        if self._unzip is None and name not in ("", "identity"):
            raise Unreadable(f"its encoding is {name[:40]!r}")

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Yield the unpacked slices of a piece of the body. Raises Unreadable."""
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


class _BoundedStream(httpx2.AsyncByteStream):
    """A body that is unpacked here, and raises DecodingError above the limits."""

    def __init__(self, inner: Any, encoding: str) -> None:
        self._inner = inner
        self._encoding = encoding

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = values = 0
        try:
            unpacker = Unpacker(self._encoding)
            async for piece in self._inner:
                for plain in unpacker.feed(piece):
                    size += len(plain)
                    values += sum(map(plain.count, (b"[", b"{", b",")))
                    if size > ANSWER_BYTES_MAX or values > ANSWER_VALUES_MAX:
                        raise httpx2.DecodingError("the provider's answer is too large for a summary")
                    yield plain
        except Unreadable as error:
            raise httpx2.DecodingError(f"the provider's answer cannot be unpacked: {error}") from None

    async def aclose(self) -> None:
        await self._inner.aclose()


async def _bound(response: httpx2.Response) -> None:
    encoding = response.headers.pop("content-encoding", "")
    response.stream = _BoundedStream(response.stream, encoding)


async def _offer_encodings(request: httpx2.Request) -> None:
    request.headers["accept-encoding"] = "gzip, deflate"


BOUNDED: Final[dict[str, Any]] = {"request": [_offer_encodings], "response": [_bound]}
"""Hooks of an httpx client that apply the limits."""
