"""An event loop that measures how long it blocks."""

import asyncio
import selectors
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class Stretches(selectors.DefaultSelector):
    """A selector that records the CPU seconds between two polls, during which no other request is served.

    Thread time is measured, so that a busy machine changes it little.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self._since: float | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Record the time since the last poll, then select."""
        if self._since is not None:
            self.seconds.append(time.thread_time() - self._since)
        ready = super().select(timeout)
        self._since = time.thread_time()
        return ready


def run_watched(work: Coroutine[Any, Any, _T]) -> tuple[_T, list[float]]:
    """Run `work` on a new event loop; return its result and the recorded CPU seconds."""
    stretches = Stretches()
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(stretches)) as runner:
        return runner.run(work), stretches.seconds
