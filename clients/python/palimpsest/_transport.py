"""Requests over HTTP with retries, blocking and asynchronous. All decisions are made elsewhere."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx2

from palimpsest import _retry
from palimpsest._model import Model
from palimpsest._request import Listing, Request
from palimpsest._version import VERSION
from palimpsest.errors import (
    ConnectionFailed,
    ConnectionTimedOut,
    PalimpsestError,
    UnreadableAnswer,
    from_response,
)
from palimpsest.operations.names import plain

T = TypeVar("T")
STREAM_SILENCE_SECONDS = 90.0
"""The read timeout of a stream; the server sends comments more often."""


@dataclass(frozen=True)
class Options:
    """The server's address, the key, and the options of requests."""

    base_url: str
    api_key: str | None = field(repr=False)
    timeout: float
    max_retries: int
    headers: Mapping[str, str]

    def replace(
        self,
        base_url: str | None,
        api_key: str | None,
        timeout: float | None,
        max_retries: int | None,
        headers: Mapping[str, str] | None,
    ) -> Options:
        """Return a copy with the options that are not None replaced; headers are added."""
        return Options(
            self.base_url if base_url is None else base_url.rstrip("/"),
            self.api_key if api_key is None else api_key,
            self.timeout if timeout is None else timeout,
            self.max_retries if max_retries is None else max_retries,
            {**self.headers, **(headers or {})},
        )

    def request(self, asked: Request[Any]) -> dict[str, Any]:
        """Return httpx's arguments for a request, used for all of its attempts."""
        headers = {"User-Agent": f"palimpsest-context-client/{VERSION}", **self.headers}
        if self.api_key is not None:
            headers["Authorization"] = f"Bearer {self.api_key}"
        if asked.method == "POST":
            headers["Idempotency-Key"] = asked.idempotency_key or str(uuid.uuid4())
        body, content = asked.json(), None
        waits_ms = {**asked.params(), **(body or {})}.get("wait_ms") or 0
        if body is not None:
            headers["Content-Type"] = "application/json"
            content = json.dumps(body, default=plain, separators=(",", ":")).encode()
        return {
            "method": asked.method,
            "url": self.base_url + asked.path,  # absolute: `context:preview` alone would be parsed as having a scheme
            "params": asked.params(),
            "content": content,
            "headers": headers,
            "timeout": self.timeout + waits_ms / 1000,
        }

    def retry_delay(self, asked: Request[Any], error: PalimpsestError, attempt: int) -> float | None:
        """Return the seconds until the next attempt; None if there is none."""
        if isinstance(error, ConnectionFailed) and not asked.repeatable:
            return None
        return _retry.wait(error, attempt, self.max_retries)


def response_content(asked: Request[T], response: httpx2.Response) -> Any:
    """Return a response's content: JSON, text, or None."""
    if asked.answer is None or response.status_code == 204:
        return None
    return response.text if asked.answer is str else response.json()


def parse_response(asked: Request[T], response: httpx2.Response) -> T:
    """Return the typed response. Raises UnreadableAnswer."""
    try:
        answer = asked.parse(response_content(asked, response))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UnreadableAnswer(f"{response.url} returned a response that cannot be read: {error!r}") from error
    kind = asked.answer
    is_model = not isinstance(asked, Listing) and isinstance(kind, type) and issubclass(kind, Model)
    if is_model and not (isinstance(answer, kind) and answer.to_dict().keys() & kind.__dataclass_fields__.keys()):
        raise UnreadableAnswer(f"{response.url} returned a response that is not a {kind.__name__}")
    return answer


def _failed(error: httpx2.RequestError, url: str) -> ConnectionFailed:
    what = str(error) or type(error).__name__
    if isinstance(error, httpx2.TimeoutException):
        return ConnectionTimedOut(f"{url} did not respond in time: {what}")
    return ConnectionFailed(f"{url} cannot be reached: {what}. Is the server running, and is PALIMPSEST_URL correct?")


class Connections(httpx2.Client):
    """Connections that close themselves when no client or session refers to them any more."""

    def __del__(self) -> None:
        with suppress(AttributeError):  # `__init__` raised, so there is nothing to close
            self.close()


class Transport:
    """Sends requests and blocks until their responses arrive."""

    def __init__(self, options: Options, http: httpx2.Client) -> None:
        self.options = options
        self.http = http

    def send(self, asked: Request[Any]) -> httpx2.Response:
        """Return the successful response. Raises ConnectionFailed or StatusError, after the retries."""
        arguments = self.options.request(asked)
        attempt = 0
        while True:
            try:
                response = self._attempt(arguments)
                if response.is_success:
                    return response
                raise from_response(response)
            except PalimpsestError as error:
                seconds = self.options.retry_delay(asked, error, attempt)
                if seconds is None:
                    raise
            time.sleep(seconds)
            attempt += 1

    def _attempt(self, arguments: dict[str, Any]) -> httpx2.Response:
        try:
            return self.http.request(**arguments)
        except httpx2.RequestError as error:
            raise _failed(error, self.options.base_url) from error

    def ask(self, asked: Request[T]) -> T:
        """Return the typed response."""
        return parse_response(asked, self.send(asked))

    @contextmanager
    def stream(self, asked: Request[Any], headers: Mapping[str, str] | None = None) -> Iterator[httpx2.Response]:
        """Open a streamed response, without retries."""
        arguments = self.options.request(asked)
        arguments["headers"].update(headers or {})
        arguments["timeout"] = httpx2.Timeout(self.options.timeout, read=STREAM_SILENCE_SECONDS)
        try:
            with self.http.stream(**arguments) as response:
                if not response.is_success:
                    response.read()
                    raise from_response(response)
                yield response
        except httpx2.RequestError as error:
            raise _failed(error, self.options.base_url) from error


class AsyncTransport:
    """Sends requests and awaits their responses."""

    def __init__(self, options: Options, http: httpx2.AsyncClient) -> None:
        self.options = options
        self.http = http

    async def send(self, asked: Request[Any]) -> httpx2.Response:
        """Return the successful response. Raises ConnectionFailed or StatusError, after the retries."""
        arguments = self.options.request(asked)
        attempt = 0
        while True:
            try:
                response = await self._attempt(arguments)
                if response.is_success:
                    return response
                raise from_response(response)
            except PalimpsestError as error:
                seconds = self.options.retry_delay(asked, error, attempt)
                if seconds is None:
                    raise
            await asyncio.sleep(seconds)
            attempt += 1

    async def _attempt(self, arguments: dict[str, Any]) -> httpx2.Response:
        try:
            return await self.http.request(**arguments)
        except httpx2.RequestError as error:
            raise _failed(error, self.options.base_url) from error

    async def ask(self, asked: Request[T]) -> T:
        """Return the typed response."""
        return parse_response(asked, await self.send(asked))

    @asynccontextmanager
    async def stream(
        self, asked: Request[Any], headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[httpx2.Response]:
        """Open a streamed response, without retries."""
        arguments = self.options.request(asked)
        arguments["headers"].update(headers or {})
        arguments["timeout"] = httpx2.Timeout(self.options.timeout, read=STREAM_SILENCE_SECONDS)
        try:
            async with self.http.stream(**arguments) as response:
                if not response.is_success:
                    await response.aread()
                    raise from_response(response)
                yield response
        except httpx2.RequestError as error:
            raise _failed(error, self.options.base_url) from error
