"""An event loop that measures how long it keeps others waiting."""

import asyncio
import selectors
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class Stretches(selectors.DefaultSelector):
    """A selector that notes the CPU seconds a loop's thread takes from one look at its sockets to the next.

    For so long nobody else is answered. It is the thread's own time, so that a busy machine changes it little.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self._since: float | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Note the stretch that ends, then wait as any selector does."""
        if self._since is not None:
            self.seconds.append(time.thread_time() - self._since)
        ready = super().select(timeout)
        self._since = time.thread_time()
        return ready


def run_watched(work: Coroutine[Any, Any, _T]) -> tuple[_T, list[float]]:
    """Run `work` on a loop of its own; return what it returned and the loop's stretches."""
    stretches = Stretches()
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(stretches)) as runner:
        return runner.run(work), stretches.seconds
