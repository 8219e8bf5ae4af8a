"""Limits of the answers of summarizers' providers, for the vendors' clients, which read a body whole."""

from collections.abc import AsyncIterator
from typing import Any, Final

import httpx2

from app.core.gateway.bounds import Unpacker, Unreadable

ANSWER_BYTES_MAX: Final = 2 * 1024 * 1024
"""Maximum bytes of an answer, unpacked: many times the longest summary."""
ANSWER_VALUES_MAX: Final = 100_000
"""Maximum brackets, braces and commas in an answer: the clients make a Python object of each value."""


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
