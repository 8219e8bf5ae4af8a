"""Workers as processes: another one finishes the work of one that was killed, and nothing is done twice."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from app.store.engine import Database
from tests.acceptance.conftest import SECONDS_MAX, Command, Commands
from tests.conformance.agent import Agent, Json
from tests.contract.summaries.test_summaries import SMALL, append_turns, check_coverage
from tests.support.queue import wait_until_idle
from tests.support.summarizers import Summarizers, ok, slow

pytestmark = pytest.mark.slow

TURNS = 24


@pytest.fixture
def gate(fake_summarizers: Summarizers) -> Iterator[asyncio.Event]:
    """Return the event that a slow response waits for; it is set in any case before the stand-in closes."""
    event = asyncio.Event()
    yield event
    event.set()


class Site:
    """An API and its workers, as processes on one database."""

    def __init__(self, commands: Commands, database_url: str, fake_summarizers: Summarizers) -> None:
        self._commands, self._stand_in = commands, fake_summarizers
        self._settings = {
            "DATABASE_URL": database_url,
            "WORKER_HEARTBEAT_SECONDS": "1",
            "SUMMARIZER": "anthropic",
            "ANTHROPIC_BASE_URL": fake_summarizers.anthropic_url,
        }
        self._workers: list[Command] = []

    async def api(self) -> str:
        """Start an API process; return its base URL."""
        return await (await self._commands.start("api", **self._settings)).url()

    async def workers(self, number: int) -> None:
        """Start `number` more workers, and wait until they work."""
        started = [await self._commands.start("worker", **self._settings) for _ in range(number)]
        for worker in started:
            await worker.expect_line("starting")
            await worker.expect_line("working")
        self._workers += started

    async def signal_the_one_that_asks(self, number: signal.Signals) -> Command:
        """Send a signal to the worker whose model request is running; call `asked` first."""
        port = urlsplit(self._stand_in.url).port
        (asking,) = (worker for worker in self._workers if port in _remote_ports(worker))
        asking.process.send_signal(number)
        if number != signal.SIGSTOP:
            self._workers.remove(asking)
        return asking

    async def stop(self) -> None:
        """Assert that the remaining workers end cleanly."""
        for worker in self._workers:
            assert (await worker.stop())[0] == 0


@pytest.fixture
async def site(commands: Commands, database_url: str, fake_summarizers: Summarizers) -> AsyncIterator[Site]:
    """Return a site whose processes are killed before the stand-in closes, which waits for its clients."""
    yield Site(commands, database_url, fake_summarizers)
    await commands.kill_all()


def _remote_ports(worker: Command) -> set[int]:
    connections = psutil.Process(worker.process.pid).net_connections(kind="tcp")
    return {one.raddr.port for one in connections if one.status == psutil.CONN_ESTABLISHED and one.raddr}


async def wait_for_requests(fake_summarizers: Summarizers, times: int) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        await fake_summarizers.wait_for_requests(times)


async def wait_for_run(http: httpx.AsyncClient, database: Database, id: str) -> Json:
    """Return the run, once no job is queued or running."""
    await wait_until_idle(database)
    run: Json = (await http.get(f"/v1/sessions/s/compactions/{id}")).json()
    assert run["state"] not in ("scheduled", "running")
    return run


async def check_summaries(http: httpx.AsyncClient) -> list[Json]:
    """Return the live summaries, which must be adjacent from seq 1 on, each made once."""
    rows: list[Json] = (await http.get("/v1/sessions/s/summaries", params={"limit": 500})).json()["items"]
    assert {row["status"] for row in rows} == {"live"}
    rows.sort(key=lambda row: row["from_seq"])
    ends = [0, *(row["to_seq"] for row in rows)]
    assert [row["from_seq"] for row in rows] == [end + 1 for end in ends[:-1]]
    return rows


async def begin(http: httpx.AsyncClient, turns: int = TURNS) -> tuple[Agent, str]:
    """Create a session with several due summaries; return its agent and the id of the requested run."""
    agent = await Agent.begin(http, SMALL)
    await append_turns(agent, turns)
    run = (await http.post("/v1/sessions/s/compactions", json={})).json()
    return agent, run["id"]


async def test_a_killed_workers_run_is_finished_by_another(
    site: Site, fake_summarizers: Summarizers, database: Database
) -> None:
    fake_summarizers.queue(fake_summarizers.never(), ok(), fake_summarizers.never())
    async with httpx.AsyncClient(base_url=await site.api(), timeout=30) as http:
        agent, run_id = await begin(http)
        await site.workers(2)
        await wait_for_requests(fake_summarizers, 1)
        killed = await site.signal_the_one_that_asks(signal.SIGKILL)
        assert (await killed.wait())[0] == -signal.SIGKILL
        await site.workers(1)
        await wait_for_requests(
            fake_summarizers, 3
        )  # the next worker has stored the first summary and is at the second
        await site.signal_the_one_that_asks(signal.SIGKILL)
        run = await wait_for_run(http, database, run_id)
        assert (run["state"], run["error"]) == ("succeeded", None)
        rows = await check_summaries(http)
        assert len(rows) > 2
        assert len(fake_summarizers.requests) == len(rows) + 2  # stored summaries are not requested again
        assert [row["degraded"] for row in rows] == [False] * len(rows)
        runs = (await http.get("/v1/sessions/s/compactions")).json()["items"]
        assert [row["state"] for row in runs] == ["succeeded"]
        await agent.context(force=True)
        assert (await check_coverage(http))["head"] == 4 * TURNS
    await site.stop()


async def test_a_stopping_worker_hands_over_its_run(
    site: Site, fake_summarizers: Summarizers, database: Database
) -> None:
    fake_summarizers.queue(fake_summarizers.never())
    async with httpx.AsyncClient(base_url=await site.api(), timeout=30) as http:
        _, run_id = await begin(http)
        await site.workers(2)
        await wait_for_requests(fake_summarizers, 1)
        stopping = await site.signal_the_one_that_asks(signal.SIGTERM)
        assert (await stopping.wait())[0] == 0
        await wait_for_requests(fake_summarizers, 2)
        assert (await wait_for_run(http, database, run_id))["state"] == "succeeded"
        assert await database.fetch("SELECT FROM pgqueuer_log WHERE status IN ('canceled', 'exception')") == []
        assert len(fake_summarizers.requests) == len(await check_summaries(http)) + 1


async def test_a_worker_that_was_thought_dead_does_no_harm_when_it_comes_back(
    site: Site, fake_summarizers: Summarizers, database: Database, gate: asyncio.Event
) -> None:
    fake_summarizers.queue(slow(gate))
    async with httpx.AsyncClient(base_url=await site.api(), timeout=30) as http:
        agent, run_id = await begin(http)
        await site.workers(2)
        await wait_for_requests(fake_summarizers, 1)
        paused = await site.signal_the_one_that_asks(signal.SIGSTOP)
        assert (await wait_for_run(http, database, run_id))["state"] == "succeeded"
        before = await check_summaries(http)
        gate.set()
        paused.process.send_signal(signal.SIGCONT)
        await wait_until_idle(database)
        assert (await paused.stop())[0] == 0  # its own work is lost
        assert await check_summaries(http) == before
        runs = (await http.get("/v1/sessions/s/compactions")).json()["items"]
        assert [row["state"] for row in runs] == ["succeeded"]
        await agent.context(force=True)
        assert (await check_coverage(http))["head"] == 4 * TURNS
