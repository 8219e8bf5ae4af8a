"""Event loop lag of a server, measured by a client of its cheapest endpoint."""

import asyncio
import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Final

from bench.http import Http

PAUSE_SECONDS: Final = 0.01


class Prober:
    """A process that requests a server's `/healthz` every 10 ms.

    The endpoint needs no database, so a response that takes more than a fraction of a millisecond shows for how long
    the server's event loop was blocked or waited for a core.
    """

    def __init__(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._orders, there = spawn.Pipe()
        self._process = spawn.Process(target=_ask, args=(there,), daemon=True)
        self._process.start()

    @contextmanager
    def probing(self, port: int) -> Iterator[list[float]]:
        """Request while the block lasts; the list holds the seconds of each response after the block."""
        found: list[float] = []
        self._orders.send(port)
        self._orders.recv()
        try:
            yield found
        finally:
            self._orders.send(None)
            found += self._orders.recv()

    def stop(self) -> None:
        """Stop the process."""
        self._process.terminate()
        self._process.join()


def _ask(orders: Connection) -> None:
    async def ask(port: int) -> list[float]:
        http = await Http.connect(port)
        await http.request("GET", "/healthz")
        orders.send("asking")
        found: list[float] = []
        while not orders.poll():
            begun = time.perf_counter()
            await http.request("GET", "/healthz")
            found.append(time.perf_counter() - begun)
            await asyncio.sleep(PAUSE_SECONDS)
        orders.recv()
        http.close()
        return found

    while True:
        orders.send(asyncio.run(ask(orders.recv())))
