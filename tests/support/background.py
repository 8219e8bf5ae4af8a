"""A background task that runs until its test ends."""

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType


class Background:
    """Run `run` in the background; it gets the event that stops it."""

    def __init__(self, run: Callable[[asyncio.Event], Awaitable[None]]) -> None:
        self._run, self._stop = run, asyncio.Event()
        self._task: asyncio.Future[None] | None = None

    def start(self) -> None:
        """Start the task."""
        self._task = asyncio.ensure_future(self._run(self._stop))

    async def __aenter__(self) -> "Background":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._task is not None:
            await self._task
