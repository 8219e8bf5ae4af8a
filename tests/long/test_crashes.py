"""Workers, the API and Postgres killed at random points of 200 compactions: nothing is lost or done twice.

Also kills `serve` and its Postgres repeatedly: everything acknowledged is kept, and it soon serves again.
"""

import asyncio
import random
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import psutil
import pytest

from app.store import dsn, embedded, migrate
from tests.acceptance.conftest import Command, Commands, processes
from tests.conformance.agent import Json
from tests.support.summarizers import Behaviour, ReceivedRequest, Reply, Summarizers, ok, summarizers

pytestmark = pytest.mark.embedded("it is killed")

SEED = 20_261_121
SESSIONS = 5
CYCLES = 40
TURNS = 4
REQUESTS_BETWEEN_KILLS = (1, 4)
DECK = {"worker": 4, "both workers": 1, "api": 2, "postgres": 2, "backend": 1}
"""Number of kills of each in a round; the order is random."""
SECONDS_BEFORE_A_KILL = 0.3
SECONDS_OF_A_MODEL = 0.5
SECONDS_MAX = 120
ENDED = ("succeeded", "skipped", "failed")
POLICY = {
    "window_tokens": 12_000,
    "reserve_tokens": 0,
    "retention": {"keep_last": None, "superseded": False, "arguments": False},
}
KILLS = 45
SERVE_DECK = (*["postmaster"] * 3, *["backend"] * 2, "api process", "worker process", "serve", "everything")
CLIENTS = 2
PAUSE_SECONDS = 0.05
"""Pause of a client between two tries, since it is not notified when the server is back."""
SECONDS_BACK = 10.0
WORDS = "The build of the parser takes the configuration from its own folder and writes the result to disk. " * 8


class Site:
    """An embedded Postgres, an API and two workers. `up` is set while the API and its database respond."""

    def __init__(self, commands: Commands, fake_summarizers: Summarizers, chance: random.Random) -> None:
        self._commands, self._stand_in, self._chance = commands, fake_summarizers, chance
        self._workers: list[Command] = []
        self._deck: list[str] = []
        self.url = ""
        self.up = asyncio.Event()
        self.killed: dict[str, int] = {}

    async def start(self) -> None:
        """Start all processes, on an empty database."""
        self._postgres = await asyncio.to_thread(embedded.start, self._commands.folder)
        self.database_url = self._postgres.url
        await migrate.upgrade(self.database_url)
        await self._start_api()
        await asyncio.gather(self._start_worker(), self._start_worker())

    async def stop(self) -> None:
        """Stop all processes."""
        for process in (*self._workers, self._api):
            await process.kill()
        await asyncio.to_thread(self._postgres.stop)

    async def kill_something(self) -> None:
        """Kill the next target, and start again what does not restart automatically."""
        ways: dict[str, Callable[[], Awaitable[None]]] = {
            "worker": self._kill_a_worker,
            "both workers": self._kill_both_workers,
            "api": self._kill_the_api,
            "postgres": self._kill_postgres,
            "backend": self._kill_a_backend,
        }
        if not self._deck:
            self._deck = self._chance.sample(list(DECK), sum(DECK.values()), counts=list(DECK.values()))
        way = self._deck.pop()
        self.killed[way] = self.killed.get(way, 0) + 1
        await ways[way]()

    async def _kill_a_worker(self) -> None:
        await self._workers.pop(self._chance.randrange(2)).kill()
        await self._start_worker()

    async def _kill_both_workers(self) -> None:
        await asyncio.gather(*(worker.kill() for worker in self._workers))
        self._workers.clear()
        await asyncio.gather(self._start_worker(), self._start_worker())

    async def _kill_the_api(self) -> None:
        self.up.clear()
        await self._api.kill()
        await self._start_api()

    async def _kill_postgres(self) -> None:
        """Kill the postmaster, whose children end when they notice, and start it again as `palimpsest serve` does."""
        postmaster = self._commands.postmaster()
        assert postmaster is not None
        self.up.clear()
        postmaster.kill()
        await asyncio.to_thread(self._postgres.stop)
        self._postgres = await asyncio.to_thread(embedded.start, self._commands.folder)
        self.up.set()

    async def _kill_a_backend(self) -> None:
        """Kill the process of one connection, after which Postgres restarts all others."""
        postmaster = self._commands.postmaster()
        assert postmaster is not None
        self.up.clear()
        serving = [child for child in postmaster.children() if " postgres postgres [local]" in _title(child)]
        self._chance.choice(serving).kill()
        async with asyncio.timeout(SECONDS_MAX):
            while not await self._answers():
                pass
        self.up.set()

    async def _answers(self) -> bool:
        try:
            connection = await asyncpg.connect(dsn.for_asyncpg(self.database_url))
            await connection.close()
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            return False
        return True

    async def _start_api(self) -> None:
        command = await self._start("api")
        self.url = await command.url()
        self._api = command
        self.up.set()

    async def _start_worker(self) -> None:
        command = await self._start("worker")
        await command.expect_line("starting")
        await command.expect_line("working")
        self._workers.append(command)

    async def _start(self, role: str) -> Command:
        return await self._commands.start(
            role,
            DATABASE_URL=self.database_url,
            WORKER_HEARTBEAT_SECONDS="1",
            SUMMARIZER="anthropic",
            ANTHROPIC_BASE_URL=self._stand_in.anthropic_url,
        )


class Agent:
    """A client that retries each request with the same idempotency key until it has a response."""

    def __init__(self, site: Site, name: str) -> None:
        self._site, self._path = site, f"/v1/sessions/{name}"
        self._http = httpx.AsyncClient(timeout=30)
        self.acknowledged: dict[int, str] = {}
        self.sent: list[str] = []

    async def live(self) -> None:
        """Run cycles of a few turns, a context, and a compaction that is waited for."""
        await self.ask("PUT", "", json={"policy": POLICY})
        for cycle in range(CYCLES):
            for turn in range(cycle * TURNS, cycle * TURNS + TURNS):
                await self._append(turn)
            context = await self.ask("POST", "/context", json={})
            assert context["tokens"]["estimate"] <= context["tokens"]["target"]
            while (run := await self.ask("POST", "/compactions", json={"wait_ms": 10_000}))["state"] not in ENDED:
                pass
            assert run["state"] != "failed", run

    async def ask(self, method: str, path: str, **more: Any) -> Json:
        """Return the response, retrying while API processes are killed."""
        async with asyncio.timeout(SECONDS_MAX):
            while True:
                await self._site.up.wait()
                try:
                    answer = await self._http.request(method, self._site.url + self._path + path, **more)
                except httpx.TransportError:
                    continue
                if answer.status_code < 500:
                    assert answer.is_success, answer.text
                    found: Json = answer.json()
                    return found

    async def close(self) -> None:
        await self._http.aclose()

    async def _append(self, turn: int) -> None:
        texts = [f"question {turn}: look at src/part_{turn}.py", f"turn {turn}: {WORDS}", f"Answer {turn}. {WORDS}"]
        call = {"type": "tool.call", "call_id": f"c{turn}", "tool": "read", "arguments": {"path": f"src/{turn}.py"}}
        events = [
            {"type": "user.message", "content": texts[0]},
            call,
            {"type": "tool.result", "call_id": f"c{turn}", "content": texts[1]},
            {"type": "assistant.message", "content": texts[2]},
        ]
        answer = await self.ask("POST", "/events", json={"events": events}, headers={"Idempotency-Key": f"turn-{turn}"})
        seqs = [row["seq"] for row in answer["events"]]
        for seq, text in zip((seqs[0], *seqs[2:]), texts, strict=True):
            self.acknowledged[seq] = text
        self.sent += texts

    async def check(self) -> int:
        """Assert that nothing is lost or duplicated; return the number of summaries."""
        log: list[Json] = []
        while page := (await self.ask("GET", "/events", params={"after": len(log), "limit": 1000}))["items"]:
            log += page
        assert [event["seq"] for event in log] == list(range(1, 4 * TURNS * CYCLES + 1))
        assert [event["content"] for event in log if event["type"] != "tool.call"] == self.sent
        assert {
            event["seq"]: event["content"] for event in log if event["seq"] in self.acknowledged
        } == self.acknowledged
        rows = (await self.ask("GET", "/summaries", params={"limit": 500}))["items"]
        spans = sorted((row["from_seq"], row["to_seq"]) for row in rows if row["status"] == "live")
        assert [first for first, _ in spans] == [1, *(last + 1 for _, last in spans[:-1])]
        made = [(row["from_seq"], row["to_seq"], row["depth"]) for row in rows if row["status"] != "refused"]
        assert len(made) == len(set(made))
        await self.ask("POST", "/context", json={"force": True})
        coverage = await self.ask("GET", "/coverage")
        assert coverage["ok"], coverage["faults"]
        assert coverage["head"] == len(log)
        return len(made)


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def thinking(chance: random.Random) -> Behaviour:
    """Return a model that responds slowly."""

    async def answer(asked: ReceivedRequest) -> Reply:
        await asyncio.sleep(chance.uniform(0, SECONDS_OF_A_MODEL))
        return await ok().answer(asked)

    return Behaviour(answer)


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="palimpsest-test-") as name:
        yield Path(name) / "data"


@pytest.fixture
async def fake_summarizers() -> AsyncIterator[Summarizers]:
    async with summarizers() as serving:
        serving.default = thinking(random.Random(SEED))
        yield serving


@pytest.fixture
async def site(folder: Path, fake_summarizers: Summarizers) -> AsyncIterator[Site]:
    commands = Commands(folder)
    made = Site(commands, fake_summarizers, random.Random(SEED))
    try:
        await made.start()
        yield made
        await made.stop()
    finally:
        await commands.kill_all()


async def kill_at_random(site: Site, fake_summarizers: Summarizers, done: asyncio.Event) -> None:
    """Kill something some time after every few requests to the summarizer, until all is done."""
    chance = random.Random(SEED + 1)
    ending = asyncio.create_task(done.wait())
    while True:
        asking = asyncio.create_task(
            fake_summarizers.wait_for_requests(len(fake_summarizers.requests) + chance.randint(*REQUESTS_BETWEEN_KILLS))
        )
        await asyncio.wait({asking, ending}, return_when=asyncio.FIRST_COMPLETED)
        if ending.done():
            asking.cancel()
            return
        await asyncio.sleep(chance.uniform(0, SECONDS_BEFORE_A_KILL))
        await site.kill_something()


async def queue_is_empty(connection: asyncpg.Connection) -> None:
    """Wait until no job is queued or running."""
    async with asyncio.timeout(SECONDS_MAX):
        while await connection.fetch("SELECT FROM pgqueuer WHERE entrypoint = 'compact'"):
            pass


@pytest.mark.long
async def test_nothing_is_lost_and_nothing_done_twice_whatever_is_killed(
    site: Site, fake_summarizers: Summarizers
) -> None:
    agents = [Agent(site, f"s{number}") for number in range(SESSIONS)]
    done = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(kill_at_random(site, fake_summarizers, done))
        await asyncio.gather(*(group.create_task(agent.live()) for agent in agents))
        done.set()
    connection = await asyncpg.connect(dsn.for_asyncpg(site.database_url))
    await queue_is_empty(connection)
    assert await connection.fetch("SELECT * FROM compactions WHERE state NOT IN ('succeeded', 'skipped')") == []
    assert (
        await connection.fetch("SELECT * FROM pgqueuer_log WHERE status IN ('canceled', 'exception', 'failed')") == []
    )
    await connection.close()
    made = [await agent.check() for agent in agents]
    for agent in agents:
        await agent.close()
    print(f"{sum(made)} summaries, {len(fake_summarizers.requests)} requests, killed: {site.killed}")
    assert sum(made) >= SESSIONS * CYCLES
    assert set(site.killed) == set(DECK)


class Client:
    """Appends to one session, retrying each event under a key of its own until it is acknowledged."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._http = httpx.AsyncClient(timeout=30)
        self.url = ""
        self.seen: Counter[int] = Counter()
        self.acknowledged: dict[int, str] = {}
        self._changed = asyncio.Condition()

    async def live(self, enough: asyncio.Event) -> None:
        """Append one event after the other until `enough` is set, and finish the last one."""
        number = 0
        while not enough.is_set():
            number += 1
            text = f"{self._name}-{number}"
            body = {"events": [{"type": "user.message", "content": text}]}
            async with asyncio.timeout(SECONDS_MAX):
                while (answer := await self._ask(body, text)) is None:
                    pass
            async with self._changed:
                self.acknowledged[answer["events"][0]["seq"]] = text
                self._changed.notify_all()

    async def is_acknowledged(self) -> None:
        """Wait for the acknowledgement of an event sent from now on; the next one may be of an earlier event."""
        enough = len(self.acknowledged) + 2
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.acknowledged) >= enough)

    async def stored(self) -> list[tuple[int, str]]:
        """Return the whole log."""
        log: list[tuple[int, str]] = []
        while True:
            params = {"after": len(log), "limit": 1000}
            answer = await self._http.get(f"{self.url}/v1/sessions/shared/events", params=params)
            assert answer.status_code == 200, answer.text
            items = answer.json()["items"]
            if not items:
                return log
            log += [(event["seq"], event["content"]) for event in items]

    async def close(self) -> None:
        await self._http.aclose()

    async def _ask(self, body: Json, key: str) -> Json | None:
        try:
            answer = await self._http.post(
                f"{self.url}/v1/sessions/shared/events", json=body, headers={"Idempotency-Key": key}
            )
        except httpx.TransportError:
            await asyncio.sleep(PAUSE_SECONDS)
            return None
        self.seen[answer.status_code] += 1
        if answer.status_code == 503:
            assert answer.headers["retry-after"] == "1"
            await asyncio.sleep(PAUSE_SECONDS)
            return None
        assert answer.is_success, answer.text
        found: Json = answer.json()
        return found


@pytest.fixture
async def commands(folder: Path) -> AsyncIterator[Commands]:
    running = Commands(folder)
    yield running
    await running.kill_all()


async def kill(commands: Commands, serve: Command, what: str, chance: random.Random) -> Command:
    """Kill one process, or all; return the running `serve`, started again if it was killed."""
    postmaster = commands.postmaster()
    assert postmaster is not None
    if what == "backend":
        serving = [child for child in postmaster.children() if " postgres postgres [local]" in _title(child)]
        chance.choice(serving).kill()
    if what in ("postmaster", "everything"):
        postmaster.kill()
    if what in ("api process", "worker process"):
        apis, workers = await processes(serve)
        (apis if what == "api process" else workers)[0].kill()
    if what in ("serve", "everything"):
        await serve.kill()
        serve = await commands.start("serve")
    return serve


@pytest.mark.long
async def test_serve_is_back_in_ten_seconds_whatever_is_killed(commands: Commands) -> None:
    chance = random.Random(SEED)
    serve = await commands.start("serve")
    clients = [Client(f"client-{number}") for number in range(CLIENTS)]
    url = await serve.url()
    for client in clients:
        client.url = url
    enough = asyncio.Event()
    back: dict[str, list[float]] = {}
    async with asyncio.TaskGroup() as group:
        for client in clients:
            group.create_task(client.live(enough))
        for number in range(KILLS):
            if number % len(SERVE_DECK) == 0:
                deck = chance.sample(SERVE_DECK, len(SERVE_DECK))
            what = deck[number % len(SERVE_DECK)]
            await asyncio.gather(*(client.is_acknowledged() for client in clients))
            await asyncio.sleep(chance.uniform(0, SECONDS_BEFORE_A_KILL))
            before = time.monotonic()
            was, serve = serve, await kill(commands, serve, what, chance)
            if serve is not was:
                url = await serve.url()
                for client in clients:
                    client.url = url
            await asyncio.gather(*(client.is_acknowledged() for client in clients))
            back.setdefault(what, []).append(time.monotonic() - before)
        enough.set()
    log = await clients[0].stored()
    for client in clients:
        await client.close()
    assert (await serve.stop())[0] == 0
    slowest = {what: round(max(seconds), 1) for what, seconds in back.items()}
    print(f"{len(log)} events, {sum(map(len, back.values()))} kills, slowest back: {slowest} seconds")
    assert [seq for seq, _ in log] == list(range(1, len(log) + 1))
    assert dict(log) == {seq: text for client in clients for seq, text in client.acknowledged.items()}
    assert len({text for _, text in log}) == len(log)
    assert max(slowest.values()) < SECONDS_BACK
    assert set(back) == set(SERVE_DECK)
