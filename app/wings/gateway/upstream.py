"""The provider that the gateway calls: requests are sent as given, and answers returned as raw bytes."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Final
from urllib.parse import urlsplit

import httpx2

CONNECT_SECONDS: Final = 10.0
IDLE_SECONDS: Final = 60.0
"""Time that an unused connection is kept."""


class UpstreamError(Exception):
    """The upstream could not be reached, or its answer broke off, as the message says. `timed_out`: it was too slow."""

    def __init__(self, detail: str, *, timed_out: bool = False) -> None:
        super().__init__(detail)
        self.timed_out = timed_out


class Upstream:
    """One provider's API. Redirects and cookies are left to the client."""

    def __init__(self, url: str, timeout_seconds: float) -> None:
        """`url` may end in `/v1`, as in clients' settings, since paths include it. `timeout_seconds` limits silence."""
        self.url = url.rstrip("/").removesuffix("/v1")
        self.host = urlsplit(self.url).hostname
        self._client = httpx2.AsyncClient(
            timeout=httpx2.Timeout(timeout_seconds, connect=CONNECT_SECONDS, pool=None),
            limits=httpx2.Limits(keepalive_expiry=IDLE_SECONDS),
            follow_redirects=False,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
        )

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    @asynccontextmanager
    async def request(
        self, method: str, target: str, fields: Sequence[tuple[bytes, bytes]], body: bytes
    ) -> AsyncIterator[httpx2.Response]:
        """Send a request to `target`, path and query; yield its answer until the block ends, with its body unread.

        Raises UpstreamError.
        """
        try:
            request = httpx2.Request(method, self.url + target, headers=list(fields), content=body or None)
            response = await self._client.send(request, stream=True)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise _no_answer(error) from None
        try:
            yield response
        finally:
            await response.aclose()


async def raw_pieces(answer: httpx2.Response) -> AsyncIterator[bytes]:
    """Yield the body of an answer as it arrives, still compressed. Raises UpstreamError."""
    try:
        async for piece in answer.aiter_raw():
            yield piece
    except httpx2.HTTPError as error:
        raise _no_answer(error) from None


def _no_answer(error: Exception) -> UpstreamError:
    """Return the error without the original text, which may quote header fields."""
    late = isinstance(error, httpx2.ReadTimeout)
    return UpstreamError(f"the upstream gave no answer: {type(error).__name__}", timed_out=late)
