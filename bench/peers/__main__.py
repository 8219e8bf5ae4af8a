"""`make bench NAME=peers`: an append, and a context that fits a budget, from sessions of increasing length.

Ours is called over HTTP, with API and worker as separate processes. The peers are called in process, each in a process
and an environment of its own. All take turns, on one embedded Postgres.
"""

import argparse
import asyncio
import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import uvloop

from app.store import embedded
from bench.agents.sides import cores, execute
from bench.peers.picture import svg
from bench.peers.sides import InProcess, Served, Side, started
from bench.peers.tables import Line, messages_table, times_table
from bench.quality.servers import temporary_folder

SIZES: Final = (100, 1_000, 10_000, 100_000)
PATIENCE_SECONDS: Final = 15
LEAST: Final = 5
"""Calls of a side at a size after which PATIENCE_SECONDS ends the size early."""
RESTARTS: Final = 3
FIRST: Final = "ours, first of a new process"
STEP: Final = "both (ours: one request)"


class Run:
    """The results so far."""

    def __init__(self, sides: Sequence[Side], count: int) -> None:
        self.sides, self.count = list(sides), count
        self.appends = {side.name: Line() for side in sides}
        self.contexts = {side.name: Line() for side in sides} | {FIRST: Line()}
        self.steps = {side.name: Line() for side in sides}

    async def at(self, size: int) -> None:
        """Fill all sides, and call each in turn; the first round warms up."""
        filled = await asyncio.gather(*[self._fill(side, size) for side in self.sides])
        self.sides = [side for side, done in zip(self.sides, filled, strict=True) if done]
        for number in range(self.count + 1):
            for side in random.Random(number).sample(self.sides, len(self.sides)):
                if not self._tired(side, size):
                    await self._ask(side, size, counted=number > 0)

    async def _fill(self, side: Side, size: int) -> bool:
        begun = time.monotonic()
        try:
            await side.fill(size)
            await execute(side.url, "VACUUM ANALYZE")
        except TimeoutError:
            _say(f"{side.name}: not filled to {size:,}")
            return False
        _say(f"{side.name}: filled to {size:,} in {time.monotonic() - begun:.0f} s, the others meanwhile")
        return True

    async def _ask(self, side: Side, size: int, *, counted: bool) -> None:
        appended = await side.append()
        asked, messages = await side.context()
        step = await side.step()
        if counted:
            self.steps[side.name].add(size, appended + asked if step is None else step)
            self.appends[side.name].add(size, appended)
            self.contexts[side.name].add(size, asked, messages)

    def _tired(self, side: Side, size: int) -> bool:
        spent = [line[side.name].seconds.get(size, []) for line in (self.appends, self.contexts)]
        return len(spent[0]) >= LEAST and sum(map(sum, spent)) > PATIENCE_SECONDS


async def play(given: argparse.Namespace) -> Run:
    """Run the benchmark and return its results."""
    with temporary_folder() as folder:
        postgres = await asyncio.to_thread(embedded.start, folder / "data")
        try:
            async with started(postgres, folder) as (served, peers):
                return await _sizes(served, peers, given)
        finally:
            await asyncio.to_thread(postgres.stop)


async def _sizes(served: Served, peers: Sequence[InProcess], given: argparse.Namespace) -> Run:
    run = Run([served, *peers], given.count)
    versions = [f"{name} {version}" for side in run.sides for name, version in side.versions.items()]
    print(", ".join(dict.fromkeys(versions)), end="\n\n", flush=True)
    for size in given.sizes:
        await run.at(size)
        for _ in range(RESTARTS if served in run.sides else 0):
            run.contexts[FIRST].add(size, await served.restarted())
        _say(f"asked at {size:,}")
    return run


def _say(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {what}", file=sys.stderr, flush=True)


def main() -> None:
    """Run the benchmark, print its tables, and draw the picture."""
    parser = argparse.ArgumentParser(
        prog="bench.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="events of a session, ascending")
    parser.add_argument("--count", type=int, default=20, help="calls of each kind at each size")
    parser.add_argument("--picture", type=Path, default=Path("docs/peers.svg"), help="a file for the SVG")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # handle like Ctrl-C, so that the processes are stopped
    print(f"{cores()} cores; {given.count} of each call at each size", end="\n\n", flush=True)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        run = runner.run(play(given))
    times = {"append": run.appends, "context": run.contexts, STEP: run.steps}
    print(f"{times_table(times, given.sizes, given.count)}\n\n{messages_table(run.contexts)}")
    given.picture.write_text(svg(run.appends, run.contexts), encoding="utf-8")


if __name__ == "__main__":
    main()
