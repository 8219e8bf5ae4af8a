"""`make bench NAME=shards`: appends and contexts a second on one Postgres, and in shards on three (needs Citus).

Both are Debian's PostgreSQL 15 without fsync on this machine's cores: the cost of reaching the nodes is measured, not
their capacity. Each has an API process and a worker; rounds are interleaved. `tests/citus/build.sh` builds Citus.
"""

import argparse
import asyncio
import itertools
import json
import multiprocessing
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

from app.runtime.settings import Settings
from app.store import migrate
from app.store.dsn import normalize
from app.wings.shards import distribute
from bench.http import Http
from bench.speed.__main__ import EVENT_TEXT, MODEL, WINDOW_TOKENS, Operation, closed_loop, figures
from bench.speed.servers import serve
from tests.citus import nodes

SHARDS: Final = 8
CLIENTS: Final = (1, 8)
EVENTS: Final = 60
"""Events of a session before its first context, which fill the window."""
_numbers = itertools.count()


@dataclass
class Side:
    """A server on a database of its own, with the seconds of each operation and of all together."""

    name: str
    port: int
    times: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    walls: dict[tuple[str, int], float] = field(default_factory=dict)

    async def session(self, events: int) -> tuple[Http, str]:
        """Create a session of `events` events."""
        http, name = await Http.connect(self.port), f"s{next(_numbers)}"
        await http.request("PUT", f"/v1/sessions/{name}", json.dumps({"model": MODEL}).encode())
        if events:
            await http.request("POST", f"/v1/sessions/{name}/events", _events(events))
        return http, name

    async def append(self) -> Operation:
        """Return an append of one event to a new session."""
        http, name = await self.session(0)
        return Operation(lambda: http.request("POST", f"/v1/sessions/{name}/events", _events(1)))

    async def context(self) -> Operation:
        """Return a context request after an append, in a new session."""
        http, name = await self.session(EVENTS)
        path = f"/v1/sessions/{name}/context?max_tokens={WINDOW_TOKENS}&model={MODEL}"
        return Operation(
            call=lambda: http.request("GET", path),
            before=lambda: http.request("POST", f"/v1/sessions/{name}/events", _events(1)),
        )

    async def outcome(self) -> Operation:
        """Return the report of an outcome in a new session; all calls are of one model."""
        http, name = await self.session(EVENTS)
        path = f"/v1/sessions/{name}/context?max_tokens={WINDOW_TOKENS}&model={MODEL}"
        calls: list[tuple[str, bytes]] = []

        async def another() -> None:
            await http.request("POST", f"/v1/sessions/{name}/events", _events(1))
            made = json.loads(await http.request("GET", path))
            usage = {"input_tokens": made["tokens"]["estimate"], "output_tokens": 100}
            calls.append((made["call_id"], json.dumps({"usage": usage}).encode()))

        async def report() -> None:
            call_id, outcome = calls[-1]
            await http.request("POST", f"/v1/sessions/{name}/calls/{call_id}/outcome", outcome)

        return Operation(call=report, before=another)

    async def play(self, count: int, *, counts: bool) -> None:
        """Run one round of each operation."""
        for clients in CLIENTS:
            operations = {"append": self.append, "append and context": self.context, "outcome": self.outcome}
            for name, make in operations.items():
                began = time.perf_counter()
                times = await closed_loop(make, clients, count)
                if counts:
                    self.times.setdefault((name, clients), []).extend(times)
                    self.walls[name, clients] = self.walls.get((name, clients), 0.0) + time.perf_counter() - began


def _events(number: int) -> bytes:
    return json.dumps({"events": [{"type": "user.message", "content": EVENT_TEXT}] * number}).encode()


def report(sides: Sequence[Side]) -> str:
    """Return a Markdown table; ratios are those of operations a second to the first side."""
    lines = [
        "| operation | clients | where | p50 ms | p99 ms | a second | against one Postgres |",
        "|---|---|---|---|---|---|---|",
    ]
    first = sides[0]
    for name, clients in first.times:
        base = figures(first.times[name, clients], first.walls[name, clients]).per_second
        for side in sides:
            one = figures(side.times[name, clients], side.walls[name, clients])
            lines.append(
                f"| {name} | {clients} | {side.name} | {one.p50:.1f} | {one.p99:.1f} | {one.per_second:.0f} "
                f"| {one.per_second / base:.2f} |"
            )
    return "\n".join(lines)


async def _database(cluster: nodes.Cluster, *, shards: bool) -> str:
    """Create a migrated database, in shards or not; return its URL."""
    url = normalize(await cluster.make("bench"))
    await migrate.upgrade(url)
    if shards:
        await distribute.distribute(url, SHARDS)
    return url


async def _serve(stack: ExitStack, name: str, url: str) -> Side:
    """Start an API process and a worker, which are stopped with the rest."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    context = multiprocessing.get_context("spawn")
    for kind in ("ours", "worker"):
        process = context.Process(target=serve, args=(kind, url, port, str(Settings().tiktoken_cache_dir)))
        process.start()
        stack.callback(process.join)
        stack.callback(process.terminate)
    while True:
        try:
            (await Http.connect(port)).close()
            return Side(name, port)
        except OSError:
            await asyncio.sleep(0.05)


async def main(rounds: int, count: int) -> None:
    """Start everything, measure, print, and stop everything."""
    with ExitStack() as stack:
        alone, three = (stack.enter_context(nodes.running(workers)) for workers in (0, 2))
        sides = [
            await _serve(stack, "one Postgres", await _database(alone, shards=False)),
            await _serve(stack, "three nodes", await _database(three, shards=True)),
        ]
        for number in range(rounds + 1):  # the first round warms up
            for side in sides:
                await side.play(count, counts=number > 0)
        print(report(sides))


if __name__ == "__main__":
    if absent := nodes.missing():
        sys.exit(absent)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--count", type=int, default=400, help="operations of each kind in a round")
    given = parser.parse_args()
    asyncio.run(main(given.rounds, given.count))
