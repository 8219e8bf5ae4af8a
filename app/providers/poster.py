"""Posting to addresses that others have chosen: where a name leads is looked at first, and nowhere else is called."""

import asyncio
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Final

import httpx

from app.core.network.webhooks import is_public

USER_AGENT: Final = "palimpsest-webhooks"


class NotPosted(Exception):
    """There was no answer; the message says why."""


@dataclass(frozen=True, slots=True)
class WebhookReply:
    """A receiver's status, and how many seconds it asked to be left alone. What else it says is not read."""

    status: int
    retry_after: float | None


class Poster:
    """One HTTP client. No redirects, no proxies from the environment, no connection kept: each call goes to the
    address that was looked at, under the name it was looked up by. `clock` gives Unix seconds."""

    def __init__(self, timeout_seconds: float, clock: Callable[[], float]) -> None:
        self._timeout = timeout_seconds
        self._clock = clock
        self._client = httpx.AsyncClient(
            timeout=timeout_seconds,
            follow_redirects=False,
            trust_env=False,
            limits=httpx.Limits(max_keepalive_connections=0),
            headers={"User-Agent": USER_AGENT},
        )

    async def aclose(self) -> None:
        """Close it."""
        await self._client.aclose()

    async def post(self, url: str, headers: Mapping[str, str], body: str, *, private: bool) -> WebhookReply:
        """The answer to a JSON body. Without `private`, private addresses are not called. Raises NotPosted."""
        try:
            target = httpx.URL(url)
            async with asyncio.timeout(self._timeout):
                for address in (addresses := await self._addresses(target, private=private)):
                    try:
                        return await self._post(target, address, headers, body)
                    except httpx.ConnectError:
                        if address == addresses[-1]:
                            raise
        except TimeoutError:
            raise NotPosted(f"no answer within {self._timeout:g} seconds") from None
        except (httpx.InvalidURL, UnicodeError) as error:
            raise NotPosted(f"its URL cannot be called: {error}") from None
        except httpx.HTTPError as error:
            raise NotPosted(f"{type(error).__name__}: {error}") from None
        raise NotPosted("its name has no address")

    async def _post(self, target: httpx.URL, address: str, headers: Mapping[str, str], body: str) -> WebhookReply:
        request = self._client.build_request(
            "POST",
            target.copy_with(host=address),
            content=body.encode(),
            headers={"Content-Type": "application/json", **headers, "Host": target.netloc.decode("ascii")},
            extensions={"sni_hostname": _name(target)} if target.scheme == "https" else {},
        )
        answer = await self._client.send(request, stream=True)
        try:
            return WebhookReply(answer.status_code, _seconds(answer.headers.get("retry-after"), self._clock()))
        finally:
            await answer.aclose()

    async def _addresses(self, target: httpx.URL, *, private: bool) -> list[str]:
        """Where a name leads. Raises NotPosted where one of its addresses is private and must not be."""
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(_name(target), target.port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise NotPosted(f"its name cannot be resolved: {error.strerror or error}") from None
        addresses = list(dict.fromkeys(str(info[4][0]) for info in found))
        if not private and not all(map(is_public, addresses)):
            raise NotPosted("it leads to a private address (PALIMPSEST_WEBHOOK_PRIVATE_TARGETS)")
        return addresses


def _name(target: httpx.URL) -> str:
    """A URL's host as DNS and TLS have it: a name with other letters than ASCII's stays encoded."""
    return target.raw_host.decode("ascii")


def _seconds(retry_after: str | None, now: float) -> float | None:
    """A Retry-After header, in seconds or as a date."""
    if retry_after is None:
        return None
    try:
        return max(0.0, float(retry_after))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - now)
    except (ValueError, TypeError, OverflowError, OSError):  # dates that no calendar or clock has
        return None
