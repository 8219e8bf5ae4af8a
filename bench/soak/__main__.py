"""`make bench NAME=soak RECORDINGS=folder`: half an hour of load at 70% of the capacity, and the quantities that grew.

Two API processes, each request to any of them, and two workers on one embedded Postgres, fsync on. First the same mix
runs as fast as it is answered: its pace is the capacity. Then operations start at 70% of that pace at random moments,
whether earlier ones have ended or not. The quantities sampled meanwhile must stay flat within the bounds of
`verdicts.py`; nothing may be refused, fail, or be lost. The exit status is 1 if any of this does not hold.
"""

import argparse
import asyncio
import gc
import json
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import uvloop

from app.store import embedded
from bench.agents.sides import ContextParameters, Ours, WholeListClient, cores, database, postmaster
from bench.agents.traffic import lives_of, load
from bench.quality.servers import Stack, temporary_folder
from bench.soak import checks, verdicts
from bench.soak.mix import AgentPool, Measurements
from bench.soak.watch import Watch
from bench.soak.wire import Receiver
from bench.speed.servers import dsn

SAMPLES: Final = Path(__file__).parents[2] / "tests" / "samples"
PROCESSES: Final = 2
"""Number of API processes, and of workers."""
STREAMS: Final = 4
AT_ONCE: Final = 16
"""Concurrent operations while the capacity is measured."""
MEASURED: Final = 0.1
"""Time for measuring the capacity, as a share of the load's minutes: three of thirty."""


@dataclass(frozen=True, slots=True)
class Place:
    """The servers under test, and the receiver of their webhooks."""

    url: str
    stacks: Sequence[Stack]
    side: Ours
    postmaster: int
    receiver: Receiver

    def pids(self) -> dict[str, int]:
        """Return the pids of the processes that are sampled."""
        roles = [(role, number, stack) for role in ("api", "worker") for number, stack in enumerate(self.stacks, 1)]
        return {f"{role} {number}": stack.pid(role) for role, number, stack in roles}


@asynccontextmanager
async def a_place(ask: ContextParameters) -> AsyncIterator[Place]:
    """Start everything, and stop it at the end."""
    async with AsyncExitStack() as ends:
        folder = ends.enter_context(temporary_folder())
        postgres = await asyncio.to_thread(embedded.start, folder / "data")
        ends.callback(postgres.stop)
        url = await database(postgres, "soak")
        receiver = Receiver()
        await receiver.start()
        ends.callback(receiver.stop)
        stacks = [Stack(url, folder, WEBHOOK_PRIVATE_TARGETS="true") for _ in range(PROCESSES)]
        await stacks[0].migrate()
        for stack in stacks:
            ends.push_async_callback(stack.stop)
            await stack.start()
        hook = {"url": f"http://127.0.0.1:{receiver.port}/", "events": ["compaction.started", "compaction.finished"]}
        (await stacks[0].http.put("/v1/webhooks/soak", json=hook)).raise_for_status()
        side = Ours("ours", url, stacks[0], ask, False, stacks[1:])
        yield Place(url, stacks, side, postmaster(postgres), receiver)


async def soak(given: argparse.Namespace) -> bool:
    """Run the soak and print its results; return whether all was flat and nothing lost."""
    ask = ContextParameters(given.format, given.window)
    lives = lives_of(load(given.data, given.files), ask.form, given.chars)
    async with a_place(ask) as place:
        side, seen = place.side, Measurements()
        whole = WholeListClient(side.name, side.url, side.stack, side.ask, False, side.extra_stacks)
        crowd = AgentPool((side, whole), lives, seen)
        await crowd.begin(given.agents)
        _say("the agents are there")
        seconds = given.minutes * 60
        await crowd.closed(AT_ONCE, seconds * MEASURED / 3)  # warm the caches
        capacity = await crowd.closed(AT_ONCE, seconds * MEASURED)
        await side.idle()
        print(f"capacity: {capacity:.1f} things a second; {given.share:.0%} of it for {given.minutes:g} minutes\n")
        _say("the load begins")
        found, watch, begun = await _loaded(place, crowd, seen, capacity * given.share, seconds)
        if given.json is not None:
            series = {**watch.series, **{f"{name}, MB": one for name, one in watch.tables.items()}}
            given.json.write_text(json.dumps({"begun": begun, "series": series, "times": seen.times}) + "\n")
        _say("the load is over")
        await side.idle()
        found += await _checked(place, crowd, given.format)
        crowd.close()
    failed = sum(seen.failed.values())
    found = [verdicts.none("requests that failed or were refused", failed), *found]
    print(verdicts.table(found), "\n\n", verdicts.sizes(watch.tables), "\n", sep="")
    print("\n".join(seen.failures))
    return all(one.flat is not False for one in found)


async def _loaded(
    place: Place, crowd: AgentPool, seen: Measurements, per_second: float, seconds: float
) -> tuple[list[verdicts.Verdict], Watch, float]:
    """Run the load; return the verdicts on its samples and latencies, the samples, and the time it began."""
    seen.times.clear()
    seen.ticks = 0
    gc.collect()
    gc.freeze()
    apis = tuple(stack.http for stack in place.stacks)
    watch = Watch(place.pids(), place.postmaster, dsn(place.url), apis, crowd.mean_kb)
    watching = asyncio.create_task(watch.run())
    listening = [asyncio.create_task(crowd.listening()) for _ in range(STREAMS)]
    begun = time.perf_counter()
    await crowd.open(per_second, seconds)
    took = time.perf_counter() - begun
    for task in (watching, *listening):
        task.cancel()
    for error in await asyncio.gather(watching, *listening, return_exceptions=True):
        if isinstance(error, Exception):
            raise error
    print(
        f"{seen.ticks:,} things done in {took:.0f} s, {seen.ticks / took:.1f} a second; "
        + ", ".join(f"{len(times):,} × {kind}" for kind, times in sorted(seen.times.items()))
        + f"; {crowd.streamed:,} events streamed, {place.receiver.received:,} webhooks received; "
        + f"{len(crowd.sessions()):,} sessions are there, {len(crowd.erased):,} were erased\n",
        flush=True,
    )
    exact = {"jobs dead", "jobs overdue"}
    found = [
        verdicts.few("scrapes of `/metrics` without the queue's figures", watch.scrapes_without_jobs, watch.scrapes)
    ]
    found += [
        verdicts.none(name, max(value for _, value in series))
        if name in exact
        else verdicts.of_series(name, series, verdicts.bound_of(name))
        for name, series in watch.series.items()
    ]
    return found + verdicts.of_times(seen.times, begun, seconds), watch, begun


async def _checked(place: Place, crowd: AgentPool, form: str) -> list[verdicts.Verdict]:
    """Return the verdicts on the stored data."""
    written = crowd.sessions()
    lost = await checks.lost(dsn(place.url), written, crowd.erased)
    calls, wrong = await checks.sample(place.stacks[-1], written, form)
    print("\n".join([*lost, *wrong][:20]))
    return [
        verdicts.none(f"of {len(written):,} sessions, logs that are not what was acknowledged", len(lost)),
        verdicts.none(f"of {calls:,} recorded calls, those that do not render again", len(wrong)),
    ]


def _say(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {what}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the soak and print its results; exit with 1 if a condition does not hold."""
    given = _arguments(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # handle like Ctrl-C, so that the servers are stopped
    print(f"{cores()} cores; {PROCESSES} API processes, {PROCESSES} workers, {given.agents} agents, {given.format}\n")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        passed: Any = runner.run(soak(given))
    raise SystemExit(0 if passed else 1)


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=SAMPLES, help="a folder of neutral JSONL recordings")
    parser.add_argument("--files", nargs="+", default=(), help="names of its files, by default the coding sessions")
    parser.add_argument("--minutes", type=float, default=30.0, help="minutes of load, after the capacity is measured")
    parser.add_argument("--share", type=float, default=0.7, help="load as a share of the capacity")
    parser.add_argument("--agents", type=int, default=40, help="number of concurrent agents")
    parser.add_argument("--chars", type=int, default=350_000, help="length of a session in characters")
    parser.add_argument("--format", choices=("anthropic", "openai"), default="anthropic")
    parser.add_argument("--window", type=int, default=60_000)
    parser.add_argument("--json", type=Path, help="a file for all samples")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
