"""`make bench NAME=speed`: raw asyncpg, the composite floor and ours, interleaved in one run.

Everything runs on this machine: Postgres, one server process each for the floor and for ours, our worker, and this
process as the closed-loop clients. Quote the ratios, not the times.
"""

import argparse
import asyncio
import itertools
import json
import multiprocessing
import socket
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from app.runtime.settings import Settings
from app.store import embedded, migrate
from app.store.engine import Database
from app.tenants import Tenants
from bench.agents import steps
from bench.http import Http
from bench.speed import floor
from bench.speed.servers import dsn, serve

MODEL, FORM = "gpt-4o", "openai"
WINDOW_TOKENS = 9_070  # a target of 8,003 after a tenth for the reserve and the estimator's margin
WORDS = "the quick brown fox jumps over the lazy dog and reads another line of the log before it answers again "
EVENT_TEXT = WORDS * 4
TENANTS = 16
APPEND, AFTER_APPEND = "append: ours", "context: ours, after an append"
OUTCOME, STEP = "outcome: ours, after a context", "step: ours, outcome, append and context in one request"
UNRATED = (AFTER_APPEND, OUTCOME)
"""Operations with others between them, which are not timed."""
CPU_COUNT = 100
SETTLE_SECONDS = 0.002
"""Pause before a process's CPU time is read, in which it finishes its last response."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One operation's times in milliseconds, and the rate a second of all clients together."""

    p50: float
    p99: float
    per_second: float


Call = Callable[[], Awaitable[object]]
Results = dict[tuple[str, int], Figures]


@dataclass(frozen=True, slots=True)
class Operation:
    """The call that is timed, and one made before it that is not."""

    call: Call
    before: Call | None = None


async def closed_loop(make: Callable[[], Awaitable[Operation]], clients: int, count: int) -> list[float]:
    """Return the seconds of each operation; `clients` run concurrently, `count` in all."""
    times: list[float] = []

    async def run(operation: Operation) -> None:
        for _ in range(count // clients):
            if operation.before is not None:
                await operation.before()
            started = time.perf_counter()
            await operation.call()
            times.append(time.perf_counter() - started)

    await asyncio.gather(*[run(await make()) for _ in range(clients)])
    return times


async def cpu_times(operation: Operation, pid: int, count: int = CPU_COUNT) -> list[float]:
    """Return the CPU seconds of a process for each operation, of one client."""
    spent = []
    for _ in range(count):
        if operation.before is not None:
            await operation.before()
        await asyncio.sleep(SETTLE_SECONDS)
        begun = _cpu_seconds(pid)
        await operation.call()
        await asyncio.sleep(SETTLE_SECONDS)
        spent.append(_cpu_seconds(pid) - begun)
    return spent


def _cpu_seconds(pid: int) -> float:
    """Return the CPU time of another process from its clock, since /proc counts in hundredths of a second."""
    return time.clock_gettime((~pid << 3) | 2)


def figures(times: Sequence[float], wall: float) -> Figures:
    """Return the figures of all rounds together."""
    ordered = sorted(times)
    return Figures(statistics.median(ordered) * 1e3, ordered[int(len(ordered) * 0.99)] * 1e3, len(ordered) / wall)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def _ready(port: int) -> Http:
    while True:
        try:
            return await Http.connect(port)
        except OSError:
            await asyncio.sleep(0.05)


class Bench:
    """The operations to compare, on one database. `keys` belong to a tenant each; most operations use the first."""

    def __init__(self, dsn: str, floor_port: int, our_port: int, our_pid: int, keys: Sequence[str]) -> None:
        self.dsn, self.floor_port, self.our_port, self.our_pid, self.keys = dsn, floor_port, our_port, our_pid, keys
        self.turns = itertools.cycle(keys)
        self.event = json.dumps({"type": "user.message", "content": EVENT_TEXT})
        self.batch = json.dumps({"events": [json.loads(self.event)]}).encode()
        self.sessions = iter(range(10**9))

    async def fill(self, events: int, session: str) -> None:
        """Fill a session of `events` events on both sides."""
        http = await Http.connect(self.our_port, self.keys[0])
        await http.request("PUT", f"/v1/sessions/{session}", json.dumps({"model": MODEL}).encode())
        for start in range(0, events, 500):
            count = min(500, events - start)
            turn = [
                {"type": "user.message", "content": EVENT_TEXT},
                {"type": "assistant.message", "content": EVENT_TEXT},
            ]
            batch = {"events": [turn[i % 2] for i in range(count)]}
            await http.request("POST", f"/v1/sessions/{session}/events", json.dumps(batch).encode())
        raw = await asyncpg.connect(self.dsn)
        await raw.execute(
            "INSERT INTO floor_events SELECT $1, n, 80, $2 FROM generate_series(1, $3::int) n",
            session,
            self.event,
            events,
        )
        await raw.execute("ANALYZE floor_events")
        await raw.execute("ANALYZE events")
        await raw.close()

    async def idle(self) -> None:
        """Wait until the worker has no summaries left to write."""
        raw = await asyncpg.connect(self.dsn)
        open_ones = "SELECT count(*) FROM compactions WHERE state IN ('scheduled', 'running')"
        while await raw.fetchval(open_ones):  # noqa: ASYNC110 - in Postgres
            await asyncio.sleep(0.1)
        await raw.close()

    async def raw_append(self) -> Operation:
        raw, session = await asyncpg.connect(self.dsn), f"raw{next(self.sessions)}"
        return Operation(lambda: raw.fetchval(floor.INSERT, session, 80, self.event))

    async def floor_append(self) -> Operation:
        http, session = await Http.connect(self.floor_port), f"floor{next(self.sessions)}"
        return Operation(lambda: http.request("POST", f"/append/{session}", self.event.encode()))

    async def our_append(self, key: str = "") -> Operation:
        http, session = await Http.connect(self.our_port, key or self.keys[0]), f"ours{next(self.sessions)}"
        await http.request("PUT", f"/v1/sessions/{session}", json.dumps({"model": MODEL}).encode())
        return Operation(lambda: http.request("POST", f"/v1/sessions/{session}/events", self.batch))

    async def append_in_turn(self) -> Operation:
        """Return an append for the next tenant, so that connections change between tenants."""
        return await self.our_append(next(self.turns))

    def raw_tail(self, session: str) -> Callable[[], Awaitable[Operation]]:
        async def make() -> Operation:
            raw = await asyncpg.connect(self.dsn)
            return Operation(lambda: raw.fetch(floor.TAIL, session, 100))

        return make

    def floor_context(self, session: str) -> Callable[[], Awaitable[Operation]]:
        async def make() -> Operation:
            http = await Http.connect(self.floor_port)
            return Operation(lambda: http.request("GET", f"/context/{session}"))

        return make

    def recorded_context(self, session: str) -> Callable[[], Awaitable[Operation]]:
        async def make() -> Operation:
            http = await Http.connect(self.floor_port)
            return Operation(lambda: http.request("GET", f"/recorded/{session}"))

        return make

    def our_context(self, session: str) -> Callable[[], Awaitable[Operation]]:
        async def make() -> Operation:
            http = await Http.connect(self.our_port, self.keys[0])
            path = f"/v1/sessions/{session}/context?max_tokens={WINDOW_TOKENS}&model={MODEL}"
            return Operation(lambda: http.request("GET", path))

        return make

    async def our_next_context(self) -> Operation:
        """Return a context request after an append, in a new session."""
        http, session = await Http.connect(self.our_port, self.keys[0]), f"grows{next(self.sessions)}"
        await self.fill(100, session)
        path = f"/v1/sessions/{session}/context?max_tokens={WINDOW_TOKENS}&model={MODEL}"
        return Operation(
            call=lambda: http.request("GET", path),
            before=lambda: http.request("POST", f"/v1/sessions/{session}/events", self.batch),
        )

    async def our_outcome(self) -> Operation:
        """Return the report of an outcome, after an append and a context, in a new session."""
        http, session = await Http.connect(self.our_port, self.keys[0]), f"reports{next(self.sessions)}"
        await self.fill(100, session)
        path, calls = f"/v1/sessions/{session}", [steps.NO_CALL]

        async def another() -> None:
            await http.request("POST", f"{path}/events", self.batch)
            answer = await http.request("GET", f"{path}/context?max_tokens={WINDOW_TOKENS}&model={MODEL}")
            calls.append(steps.next_call(answer, session, calls[-1]))

        async def post() -> None:
            await http.request("POST", f"{path}/calls/{calls[-1].id}/outcome", b"{%b}" % calls[-1].outcome(FORM))

        return Operation(post, another)

    async def our_step(self) -> Operation:
        """Return a step in one request: the last call's outcome, an append and a context, in a new session."""
        http, session = await Http.connect(self.our_port, self.keys[0]), f"steps{next(self.sessions)}"
        await self.fill(100, session)
        path = f"/v1/sessions/{session}/context"
        first = await http.request("GET", f"{path}?max_tokens={WINDOW_TOKENS}&model={MODEL}")
        calls = [steps.next_call(first, session, steps.NO_CALL)]
        asked = b'"max_tokens":%d,"model":"%b","append":%b' % (WINDOW_TOKENS, MODEL.encode(), self.batch)

        async def step() -> None:
            outcome = b'"call_id":"%b",%b' % (calls[-1].id.encode(), calls[-1].outcome(FORM))
            answer = await http.request("POST", path, b'{%b,"outcome":{%b}}' % (asked, outcome))
            calls.append(steps.next_call(answer, session, calls[-1]))

        return Operation(step)

    async def context_in_turn(self) -> Operation:
        """Return a context request for the next tenant, in a session of its own."""
        http = await Http.connect(self.our_port, next(self.turns))
        for _ in range(10):
            turn = {"events": json.loads(self.batch)["events"] * 10}
            await http.request("POST", "/v1/sessions/turns/events", json.dumps(turn).encode())
        path = f"/v1/sessions/turns/context?max_tokens={WINDOW_TOKENS}&model={MODEL}"
        return Operation(lambda: http.request("GET", path))


async def measure(bench: Bench, rounds: int, count: int) -> tuple[Results, dict[str, float]]:
    """Run all operations with 1 and 16 clients, in turn, `rounds` times; return also the median CPU ms of some."""
    operations: dict[str, Callable[[], Awaitable[Operation]]] = {
        "append: raw asyncpg": bench.raw_append,
        "append: composite floor": bench.floor_append,
        APPEND: bench.our_append,
        "append: ours, tenants in turn": bench.append_in_turn,
        "context: raw tail read": bench.raw_tail("s1000"),
        "context: composite floor": bench.floor_context("s1000"),
        "context: floor and one row": bench.recorded_context("s1000"),
        "context: ours": bench.our_context("s1000"),
        AFTER_APPEND: bench.our_next_context,
        OUTCOME: bench.our_outcome,
        STEP: bench.our_step,
        "context: ours, tenants in turn": bench.context_in_turn,
        "context: ours, 100,000 events": bench.our_context("s100000"),
    }
    times: dict[tuple[str, int], list[float]] = {}
    walls: dict[tuple[str, int], float] = {}
    spent: dict[str, list[float]] = {}
    for number in range(rounds + 1):
        for clients in (1, 16):
            for name, make in operations.items():
                started = time.perf_counter()
                batch = await closed_loop(make, clients, count)
                if number:  # the first round warms up
                    times.setdefault((name, clients), []).extend(batch)
                    walls[name, clients] = walls.get((name, clients), 0.0) + time.perf_counter() - started
        for name in (APPEND, AFTER_APPEND, OUTCOME, STEP):
            spent.setdefault(name, []).extend(await cpu_times(await operations[name](), bench.our_pid))
    cpu = {name: statistics.median(values) * 1e3 for name, values in spent.items()}
    return {key: figures(values, walls[key]) for key, values in times.items()}, cpu


def report(results: Results, cpu: Mapping[str, float]) -> str:
    """Return a Markdown table; ratios are to the composite floor of the same kind and number of clients."""
    lines = [
        "| operation | clients | p50 ms | p99 ms | per second | p50 against the floor | API CPU ms |",
        "|---|---|---|---|---|---|---|",
    ]
    for (name, clients), row in results.items():
        base = results.get((f"{name.split(':')[0]}: composite floor", clients))
        rate = "" if name in UNRATED else f"{row.per_second:.0f}"
        ratio = "" if base is None else f"{row.p50 / base.p50:.2f}"
        used = f"{cpu[name]:.2f}" if clients == 1 and name in cpu else ""
        lines.append(f"| {name} | {clients} | {row.p50:.2f} | {row.p99:.2f} | {rate} | {ratio} | {used} |")
    growth = results["context: ours, 100,000 events", 1].p50 / results["context: ours", 1].p50
    lines.append(f"\nContext at 100,000 events against 1,000, one client: {growth:.2f}")
    for name, against in ((OUTCOME, APPEND), (STEP, AFTER_APPEND)):
        p50, spent = results[name, 1].p50 / results[against, 1].p50, cpu[name] / cpu[against]
        lines.append(f"\n({name}) against ({against}), one client: p50 {p50:.2f}, API CPU {spent:.2f}")
    return "\n".join(lines)


async def _tenants(url: str) -> list[str]:
    """Create TENANTS tenants with a key each; return the keys."""
    database = Database(url, pool_size=1, role=None)
    try:
        made = [await Tenants(database, None).create_key(f"t{n}", "bench", ["admin"]) for n in range(TENANTS)]
    finally:
        await database.close()
    return [key.secret for key in made]


async def main(rounds: int, count: int) -> None:
    """Start everything, measure, print, and stop everything."""
    settings = Settings()
    with tempfile.TemporaryDirectory(prefix="palimpsest-bench-") as folder:
        postgres = embedded.start(Path(folder) / "data")
        try:
            await migrate.upgrade(postgres.url)
            raw = await asyncpg.connect(dsn(postgres.url))
            await raw.execute(floor.TABLE)
            await raw.close()
            ports = {"floor": _free_port(), "ours": _free_port()}
            spawn = multiprocessing.get_context("spawn")
            servers = [
                spawn.Process(
                    target=serve, args=(kind, postgres.url, port, str(settings.tiktoken_cache_dir)), daemon=True
                )
                for kind, port in [*ports.items(), ("worker", 0)]
            ]
            for server in servers:
                server.start()
            try:
                for port in ports.values():
                    await _ready(port)
                pid = servers[1].pid
                assert pid is not None
                bench = Bench(dsn(postgres.url), ports["floor"], ports["ours"], pid, await _tenants(postgres.url))
                await bench.fill(1_000, "s1000")
                await bench.fill(100_000, "s100000")
                await bench.idle()
                print(report(*await measure(bench, rounds, count)))
            finally:
                for server in servers:
                    server.terminate()
                    server.join()
        finally:
            postgres.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=320, help="operations a round")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.rounds, arguments.count))
