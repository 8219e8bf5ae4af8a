"""POST requests to URLs that clients chose: the host's addresses are checked first, and only those are called."""

import asyncio
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

import httpx2

from app.providers.failures import retry_after
from app.providers.redaction import may_be_secret, redacted
from app.wings.webhooks.rules import is_public

USER_AGENT: Final = "palimpsest-webhooks"


class PostError(Exception):
    """No answer was received; the message says why."""


@dataclass(frozen=True, slots=True)
class WebhookReply:
    """A receiver's status, and the seconds it asked to wait (None: it did not). Its body is not read."""

    status: int
    retry_after: float | None


@cache
def _tls() -> ssl.SSLContext:
    """Return the TLS context of all posters of this process: to read the system's certificates takes 30 ms."""
    return httpx2.create_ssl_context(trust_env=False)


class Poster:
    """An HTTP client without redirects, proxies from the environment or keep-alive. Each request goes to an
    address that was checked, under the name that it was resolved from."""

    def __init__(self, timeout_seconds: float) -> None:
        self._timeout = timeout_seconds
        self._client = httpx2.AsyncClient(
            timeout=timeout_seconds,
            verify=_tls(),
            follow_redirects=False,
            trust_env=False,
            limits=httpx2.Limits(max_keepalive_connections=0),
            headers={"User-Agent": USER_AGENT},
        )

    async def aclose(self) -> None:
        """Close the client."""
        await self._client.aclose()

    async def post(self, url: str, headers: Mapping[str, str], body: str, *, private: bool) -> WebhookReply:
        """Post a JSON body. Private addresses are called only if `private`. Raises PostError."""
        try:
            target = httpx2.URL(url)
            async with asyncio.timeout(self._timeout):
                for address in (addresses := await self._addresses(target, private=private)):
                    try:
                        return await self._post(target, address, headers, body)
                    except httpx2.ConnectError:
                        if address == addresses[-1]:
                            raise
        except TimeoutError:
            raise PostError(f"no answer within {self._timeout:g} seconds") from None
        except (httpx2.InvalidURL, UnicodeError) as error:
            raise PostError(f"its URL cannot be called: {error}") from None
        except httpx2.HTTPError as error:
            detail = redacted(str(error), [value for name, value in headers.items() if may_be_secret(name, value)])
            raise PostError(f"{type(error).__name__}: {detail}") from None
        raise PostError("its name has no address")

    async def _post(self, target: httpx2.URL, address: str, headers: Mapping[str, str], body: str) -> WebhookReply:
        request = self._client.build_request(
            "POST",
            target.copy_with(host=address),
            content=body.encode(),
            headers={"Content-Type": "application/json", **headers, "Host": target.netloc.decode("ascii")},
            extensions={"sni_hostname": _name(target)} if target.scheme == "https" else {},
        )
        answer = await self._client.send(request, stream=True)
        try:
            return WebhookReply(answer.status_code, retry_after(answer.headers))
        finally:
            await answer.aclose()

    async def _addresses(self, target: httpx2.URL, *, private: bool) -> list[str]:
        """Return the addresses of a URL's host. Raises PostError if one is private and `private` is not set."""
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(_name(target), target.port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise PostError(f"its name cannot be resolved: {error.strerror or error}") from None
        addresses = list(dict.fromkeys(str(info[4][0]) for info in found))
        if not private and not all(map(is_public, addresses)):
            raise PostError("it leads to a private address (PALIMPSEST_WEBHOOK_PRIVATE_TARGETS)")
        return addresses


def _name(target: httpx2.URL) -> str:
    """Return a URL's host as DNS and TLS need it: a name with letters outside ASCII stays encoded."""
    return target.raw_host.decode("ascii")
