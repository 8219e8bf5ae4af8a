"""The steps of docs/operations/failover.md on real servers: a standby that takes over under load."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest

from app.runtime.settings import Settings
from app.store import dsn, engine, migrate
from tests.acceptance.conftest import SECONDS_MAX, Commands
from tests.conftest import serving
from tests.support.acknowledged import Agent, check_calls, event_ids, patient_client
from tests.support.clusters import Page, clusters_folder, free_port, kill, make_cluster, shell
from tests.support.queue import worker_queue
from tests.support.sse import streaming, take

pytestmark = [pytest.mark.slow, pytest.mark.embedded("a page's commands make clusters of its programs")]

AGENTS = 4
ROUNDS = 8


class Site:
    """A primary and its synchronous standby, set up by the page's steps."""

    def __init__(self, folder: Path) -> None:
        self.primary, self.standby = folder / "primary", folder / "standby"
        self.ports = free_port(), free_port()
        values = {"HOST": "127.0.0.1"}
        self.page = Page(
            "failover.md",
            {f"{machine}_{name}": value for machine in ("PRIMARY", "STANDBY") for name, value in values.items()}
            | {"PRIMARY_PORT": self.ports[0], "PRIMARY_DATA": self.primary, "NETWORK": "127.0.0.1/32"}
            | {"STANDBY_PORT": self.ports[1], "STANDBY_DATA": self.standby}
            | {"LOGIN": "postgres", "PGPASSWORD": "a-password"},
        )
        self.url = ""

    async def set_up(self) -> None:
        """Run the page's steps up to the address, and migrate the database."""
        await make_cluster(self.primary, self.ports[0])
        await self.ask(0, "CREATE DATABASE palimpsest")
        await self.page.run("primary")
        await self.page.run("standby")
        await self.page.run("synchronous")
        await self.in_step("standby1|streaming|quorum")
        printing = ("export PALIMPSEST_DATABASE_URL=", "echo ")
        self.url = (await self.page.run("address", printing, as_current_user=True)).strip()
        await migrate.upgrade(dsn.normalize(self.url))

    async def in_step(self, line: str) -> None:
        """Wait until the page's check of the standby prints this line."""
        async with asyncio.timeout(SECONDS_MAX):
            while (await self.page.run("check")).strip() != line:
                pass

    async def ask(self, which: int, sql: str) -> str:
        return await shell(f'psql -X -h 127.0.0.1 -p {self.ports[which]} -U postgres -Atc "{sql}"')


@pytest.fixture
def clusters() -> Iterator[Path]:
    with clusters_folder() as folder:
        yield folder


@pytest.fixture
async def site(clusters: Path) -> AsyncIterator[Site]:
    found = Site(clusters)
    await found.set_up()
    yield found


@pytest.mark.wing("stream")
async def test_nothing_acknowledged_is_lost_when_the_standby_takes_over(commands: Commands, site: Site) -> None:
    api = await commands.start("api", DATABASE_URL=site.url)
    worker = await commands.start("worker", DATABASE_URL=site.url, WORKER_HEARTBEAT_SECONDS="1")
    url = await api.url()
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(patient_client(url))
        agents = [Agent(http, f"agent{number}") for number in range(AGENTS)]
        for agent in agents:
            await agent.begin()
            await agent.take_turn()
        path = f"/v1/sessions/{agents[0].session}/stream"
        stream = await stack.enter_async_context(streaming(url, path, types="appended"))
        await asyncio.gather(*(agent.take_turns(ROUNDS) for agent in agents))

        stop = asyncio.Event()
        living = [asyncio.create_task(agent.live(stop)) for agent in agents]
        stack.callback(lambda: [task.cancel() for task in living])
        await asyncio.to_thread(kill, site.primary)
        async with asyncio.timeout(SECONDS_MAX):
            await asyncio.gather(*(agent.refused.wait() for agent in agents))
        assert (await http.get("/readyz")).status_code == 503
        await site.page.run("promote")
        stop.set()
        async with asyncio.timeout(SECONDS_MAX):
            await asyncio.gather(*living)
            await asyncio.gather(*(agent.take_turns(ROUNDS) for agent in agents))
        assert (await http.get("/readyz")).status_code == 200

        for agent in agents:
            assert await event_ids(http, agent.session) == agent.events
            recorded = await check_calls(http, agent.session, agent.calls, agent.reported)
            assert set(agent.calls) == set(recorded)  # including the calls whose responses were lost with the primary
        async with asyncio.timeout(SECONDS_MAX):
            streamed = await take(stream, len(agents[0].events))
        assert [event.data["id"] for event in streamed] == agents[0].events

        await wait_for_compaction(http, agents[0].session)
        async with worker_queue(f"postgresql://postgres@127.0.0.1:{site.ports[1]}/palimpsest") as done:
            await done()
        await site.page.run("anew")
        async with asyncio.timeout(SECONDS_MAX):
            while "standby2|quorum" not in await site.ask(
                1, "SELECT application_name, sync_state FROM pg_stat_replication"
            ):
                pass
        await agents[0].take_turn()
        lines = await site.ask(0, "SELECT pg_is_in_recovery(), count(*) FROM pg_stat_wal_receiver")
        assert lines.strip() == "t|1"
    assert site.page.left == set()
    assert (await api.stop())[0] == 0
    assert (await worker.stop())[0] == 0


async def wait_for_compaction(http: httpx.AsyncClient, session: str) -> None:
    """Wait until a worker has compacted the session."""
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            run = (await http.post(f"/v1/sessions/{session}/compactions", json={"wait_ms": 10_000})).json()
            if run["state"] not in ("scheduled", "running"):
                assert run["state"] in ("succeeded", "skipped"), run
                return


async def test_without_its_standby_no_request_and_no_retry_is_acknowledged(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "COMMAND_SECONDS", 2.0)
    async with serving(Settings(), dsn.normalize(site.url)) as url, patient_client(url) as http:
        agent = Agent(http, "s")
        await agent.begin()
        await agent.take_turns(2)
        made = await agent.ask("context", {"format": "openai"})
        await asyncio.to_thread(kill, site.standby)
        event = {"type": "user.message", "id": "late", "content": "late"}
        usage = {"usage": {"input_tokens": 1, "output_tokens": 1}}

        async def asked() -> list[httpx.Response]:
            return await asyncio.gather(
                http.post("/v1/sessions/s/events", json={"events": [event]}),
                http.post("/v1/sessions/s/context", json={"format": "openai"}, headers={"Idempotency-Key": "late"}),
                http.post(f"/v1/sessions/s/calls/{made['call_id']}/outcome", json=usage),
                http.put("/v1/sessions/new", json={"model": "gpt-5"}),
                http.put("/v1/policies/new", json={"window_tokens": 10_000}),
            )

        for _ in range(3):
            for answer in await asked():
                assert answer.status_code == 503, (answer.request.url, answer.text)
                assert answer.json()["type"] == "/problems/store-unavailable"
                assert "retry-after" in answer.headers
        await shell(f"pg_ctl -D {site.standby} -o '-p {site.ports[1]}' -l {site.standby}/log -w start")
        await site.in_step("standby1|streaming|quorum")
        for answer in await asked():
            assert answer.is_success, answer.text
        assert await event_ids(http, "s") == [*agent.events, "late"]
