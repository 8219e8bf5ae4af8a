"""Descriptors that turn the functions of `palimpsest.operations` into methods of the clients.

One line in a class serves both clients: the method blocks on a blocking client and is awaited on an asynchronous one.
In addition to being called, a method has `raw` and, unless it returns a list, `streamed`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import partial
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

import httpx2

from palimpsest._request import Listing, Request
from palimpsest._transport import AsyncTransport, Transport, parse_response
from palimpsest.pages import AsyncPager, Page

P = ParamSpec("P")
T = TypeVar("T")


class Blocking:
    """The base of objects that send requests and block."""

    _transport: Transport


class Asynchronous:
    """The base of objects that send requests asynchronously."""

    _transport: AsyncTransport


class RawResponse(Generic[T]):
    """An unparsed response with `status_code`, `headers` and `http_response`; `parse` returns the method's result."""

    def __init__(self, asked: Request[T], response: httpx2.Response) -> None:
        self._asked = asked
        self.http_response = response
        self.status_code = response.status_code
        self.headers = response.headers

    def parse(self) -> T:
        """Return the typed response."""
        return parse_response(self._asked, self.http_response)


class Method(Generic[P, T]):
    """An operation of a blocking client."""

    def __init__(self, build: Callable[P, Request[T]], transport: Transport) -> None:
        self._build, self._transport = build, transport
        self.__doc__, self.__signature__ = build.__doc__, inspect.signature(build)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._transport.ask(self._build(*args, **kwargs))

    def raw(self, *args: P.args, **kwargs: P.kwargs) -> RawResponse[T]:
        """Return the response with its status and headers."""
        asked = self._build(*args, **kwargs)
        return RawResponse(asked, self._transport.send(asked))

    def streamed(self, *args: P.args, **kwargs: P.kwargs) -> AbstractContextManager[httpx2.Response]:
        """Stream the response's bytes: `with client.metrics.streamed() as response: response.iter_bytes()`."""
        return self._transport.stream(self._build(*args, **kwargs))


class AsyncMethod(Generic[P, T]):
    """An operation of an asynchronous client."""

    def __init__(self, build: Callable[P, Request[T]], transport: AsyncTransport) -> None:
        self._build, self._transport = build, transport
        self.__doc__, self.__signature__ = build.__doc__, inspect.signature(build)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        return self._transport.ask(self._build(*args, **kwargs))

    async def raw(self, *args: P.args, **kwargs: P.kwargs) -> RawResponse[T]:
        """Return the response with its status and headers."""
        asked = self._build(*args, **kwargs)
        return RawResponse(asked, await self._transport.send(asked))

    def streamed(self, *args: P.args, **kwargs: P.kwargs) -> AbstractAsyncContextManager[httpx2.Response]:
        """Stream the response's bytes."""
        return self._transport.stream(self._build(*args, **kwargs))


class ListMethod(Generic[P, T]):
    """An operation of a blocking client that returns a list in pages."""

    def __init__(self, build: Callable[P, Listing[T]], transport: Transport) -> None:
        self._build, self._transport = build, transport
        self.__doc__, self.__signature__ = build.__doc__, inspect.signature(build)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Page[T]:
        return Page(self._transport, self._build(*args, **kwargs))

    def raw(self, *args: P.args, **kwargs: P.kwargs) -> httpx2.Response:
        """Return the unparsed response with one page."""
        return self._transport.send(self._build(*args, **kwargs))


class AsyncListMethod(Generic[P, T]):
    """An operation of an asynchronous client that returns a list in pages."""

    def __init__(self, build: Callable[P, Listing[T]], transport: AsyncTransport) -> None:
        self._build, self._transport = build, transport
        self.__doc__, self.__signature__ = build.__doc__, inspect.signature(build)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> AsyncPager[T]:
        return AsyncPager(self._transport, self._build(*args, **kwargs))

    async def raw(self, *args: P.args, **kwargs: P.kwargs) -> httpx2.Response:
        """Return the unparsed response with one page."""
        return await self._transport.send(self._build(*args, **kwargs))


class operation(Generic[P, T]):
    """An operation as a method."""

    def __init__(self, build: Callable[P, Request[T]]) -> None:
        self.build = build
        self.__doc__ = build.__doc__

    @overload
    def __get__(self, owner: None, kind: type[Any]) -> operation[P, T]: ...
    @overload
    def __get__(self, owner: Blocking, kind: type[Any]) -> Method[P, T]: ...
    @overload
    def __get__(self, owner: Asynchronous, kind: type[Any]) -> AsyncMethod[P, T]: ...
    def __get__(self, owner: Any, kind: type[Any]) -> Any:
        if owner is None:
            return self
        bound = self._bind(owner)
        if isinstance(owner, Blocking):
            return Method(bound, owner._transport)
        return AsyncMethod(bound, owner._transport)

    def _bind(self, owner: Any) -> Callable[..., Request[T]]:
        return self.build


class listing(Generic[P, T]):
    """An operation that returns a list in pages, as a method."""

    def __init__(self, build: Callable[P, Listing[T]]) -> None:
        self.build = build
        self.__doc__ = build.__doc__

    @overload
    def __get__(self, owner: None, kind: type[Any]) -> listing[P, T]: ...
    @overload
    def __get__(self, owner: Blocking, kind: type[Any]) -> ListMethod[P, T]: ...
    @overload
    def __get__(self, owner: Asynchronous, kind: type[Any]) -> AsyncListMethod[P, T]: ...
    def __get__(self, owner: Any, kind: type[Any]) -> Any:
        if owner is None:
            return self
        bound = self._bind(owner)
        if isinstance(owner, Blocking):
            return ListMethod(bound, owner._transport)
        return AsyncListMethod(bound, owner._transport)

    def _bind(self, owner: Any) -> Callable[..., Listing[T]]:
        return self.build


class session_operation(operation[P, T]):
    """An operation on one session as a method of the session."""

    def __init__(self, build: Callable[Concatenate[str, P], Request[T]]) -> None:
        super().__init__(build)  # type: ignore[arg-type]  # _bind gives the session's id

    def _bind(self, owner: Any) -> Callable[..., Request[T]]:
        return partial(self.build, owner.id)


class session_listing(listing[P, T]):
    """An operation on one session that returns a list, as a method of the session."""

    def __init__(self, build: Callable[Concatenate[str, P], Listing[T]]) -> None:
        super().__init__(build)  # type: ignore[arg-type]  # _bind gives the session's id

    def _bind(self, owner: Any) -> Callable[..., Listing[T]]:
        return partial(self.build, owner.id)
