"""Lists in pages: iterate over all items, or get one page at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterator
from typing import Any, Generic, TypeVar

from palimpsest._request import Listing
from palimpsest._transport import AsyncTransport, Transport, parse_response

T = TypeVar("T")


class Page(Generic[T]):
    """A page of a list. Iterating over it continues with all later pages, each fetched when it is reached."""

    def __init__(self, transport: Transport, asked: Listing[T]) -> None:
        self._transport, self._asked = transport, asked
        self.items: list[T]
        """The items of this page only."""
        self.next_cursor: str | None
        """The cursor of the next page; None on the last one."""
        page: Any = parse_response(asked, transport.send(asked))
        self.items, self.next_cursor = page

    def __iter__(self) -> Iterator[T]:
        page: Page[T] | None = self
        while page is not None:
            yield from page.items
            page = page.next_page()

    def next_page(self) -> Page[T] | None:
        """Return the next page; None if this is the last."""
        return None if self.next_cursor is None else Page(self._transport, self._asked.after(self.next_cursor))

    def __repr__(self) -> str:
        return f"Page(items={self.items!r}, next_cursor={self.next_cursor!r})"


class AsyncPage(Generic[T]):
    """A page of a list. `async for` continues with all later pages, each fetched when it is reached."""

    def __init__(self, transport: AsyncTransport, asked: Listing[T], page: Any) -> None:
        self._transport, self._asked = transport, asked
        self.items, self.next_cursor = page

    async def __aiter__(self) -> AsyncIterator[T]:
        page: AsyncPage[T] | None = self
        while page is not None:
            for item in page.items:
                yield item
            page = await page.next_page()

    async def next_page(self) -> AsyncPage[T] | None:
        """Return the next page; None if this is the last."""
        if self.next_cursor is None:
            return None
        return await AsyncPager(self._transport, self._asked.after(self.next_cursor))

    def __repr__(self) -> str:
        return f"AsyncPage(items={self.items!r}, next_cursor={self.next_cursor!r})"


class AsyncPager(Generic[T]):
    """A list not fetched yet: `async for item in …` iterates over all items, `await …` returns the first page."""

    def __init__(self, transport: AsyncTransport, asked: Listing[T]) -> None:
        self._transport, self._asked = transport, asked

    def __await__(self) -> Generator[Any, None, AsyncPage[T]]:
        return self._first().__await__()

    async def __aiter__(self) -> AsyncIterator[T]:
        async for item in await self._first():
            yield item

    async def _first(self) -> AsyncPage[T]:
        page = parse_response(self._asked, await self._transport.send(self._asked))
        return AsyncPage(self._transport, self._asked, page)
