"""The steps of docs/operations/backup.md on real servers: dumped, copied and archived under load, and restored."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from app.store import embedded, migrate
from tests.acceptance.conftest import SECONDS_MAX, Commands
from tests.acceptance.test_failover import wait_for_compaction
from tests.support.acknowledged import Agent, check_calls, event_ids, patient_client
from tests.support.clusters import Page, clusters_folder, free_port, make_cluster, postmaster, shell
from tests.support.processes import outcome, palimpsest
from tests.support.queue import worker_queue

pytestmark = [pytest.mark.slow, pytest.mark.embedded("a page's commands make clusters of its programs")]

AGENTS = 3
ROUNDS = 5


class Site:
    """A Postgres of the test's own with an API and a worker, and the folders of the page."""

    def __init__(self, folder: Path, commands: Commands) -> None:
        self._folder, self._commands = folder, commands
        self.ports = free_port(), free_port()
        self.values: dict[str, object] = {
            "PGHOST": folder,
            "PGPORT": self.ports[0],
            "PGUSER": "postgres",
            "RESTORED_PORT": self.ports[1],
            "MOMENT": "unknown",
            "SERVE_DATA": commands.folder,
        }
        for name in ("DATA", "WAL", "BASE", "DUMP", "RESTORED", "SERVE_COPY"):
            self.values[name] = folder / name.lower()

    def page(self, **values: str) -> Page:
        return Page("backup.md", {**self.values, **values})

    def database_url(self, which: int) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.ports[which]}/palimpsest"

    async def set_up(self) -> str:
        """Start a migrated primary; return the URL of its API."""
        await make_cluster(self._folder / "data", self.ports[0])
        await shell(f'psql -X -h 127.0.0.1 -p {self.ports[0]} -U postgres -qc "CREATE DATABASE palimpsest"')
        await migrate.upgrade(self.database_url(0))
        return await self.serve(0)

    async def serve(self, which: int) -> str:
        """Start an API and a worker on one of the two; return the API's URL."""
        await self._commands.start("worker", DATABASE_URL=self.database_url(which))
        return await (await self._commands.start("api", DATABASE_URL=self.database_url(which))).url()


@pytest.fixture
def clusters() -> Iterator[Path]:
    with clusters_folder() as folder:
        yield folder


@pytest.fixture
async def site(clusters: Path, commands: Commands) -> AsyncIterator[Site]:
    yield Site(clusters, commands)
    await commands.kill_all()


async def verify(url: str) -> str:
    """Return the last line of `palimpsest verify`, which must succeed."""
    result = await outcome(await palimpsest("verify", settings={"URL": url}))
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout.splitlines()[-1]


async def test_a_moment_between_two_acknowledged_events_is_restored(site: Site, clusters: Path) -> None:
    url = await site.set_up()
    page = site.page()
    await page.run("archive")
    async with patient_client(url) as http, contextlib.AsyncExitStack() as stack:
        agents = [Agent(http, f"agent{number}") for number in range(AGENTS)]
        watched = Agent(http, "watched")
        for agent in (*agents, watched):
            await agent.begin()
            await agent.take_turn()
        stop = asyncio.Event()
        living = [asyncio.create_task(agent.live(stop)) for agent in agents]
        stack.callback(lambda: [task.cancel() for task in living])
        await page.run("base")
        await watched.take_turns(ROUNDS)
        last = await watched.append()
        before = [(agent, list(agent.events), dict(agent.calls), dict(agent.reported)) for agent in (*agents, watched)]
        moment = await shell(
            f'psql -X -h 127.0.0.1 -p {site.ports[0]} -U postgres -Atc "SELECT clock_timestamp()" palimpsest'
        )
        stop.set()
        async with asyncio.timeout(SECONDS_MAX):
            await asyncio.gather(*living)
            await asyncio.gather(*(agent.take_turn() for agent in (*agents, watched)))
        assert "|0|" in (await page.run("watch", ("psql", "psql -At")))
        await page.run("switch")

    restored = site.page(MOMENT=datetime.fromisoformat(moment.strip()).astimezone(UTC).isoformat())
    await restored.run("restore")
    await check_too_late(site, clusters)
    async with patient_client(await site.serve(1)) as http:
        for agent, events, calls, reported in before:
            there = await event_ids(http, agent.session)
            assert there[: len(events)] == events
            assert len(there) < len(agent.events)
            assert set(calls) <= set(await check_calls(http, agent.session, calls, reported)) < set(agent.calls)
        assert (await event_ids(http, "watched"))[-1] == last
        said = await verify(str(http.base_url))
        assert said.endswith("but for what was erased since, 0 do not")
        assert int(said.split()[0]) >= sum(len(calls) for _, _, calls, _ in before)

        again = Agent(http, "watched")
        again.events = await event_ids(http, "watched")
        for _ in watched.events:  # skip names that the log already has
            next(again._numbers)
        await again.take_turns(2)
        assert await event_ids(http, "watched") == again.events
        await wait_for_compaction(http, "watched")
        async with worker_queue(site.database_url(1)) as done:
            await done()


async def check_too_late(site: Site, clusters: Path) -> None:
    """A time that the archive does not reach is refused."""
    data = clusters / "late"
    values = {"RESTORED": str(data), "RESTORED_PORT": str(free_port())}
    with contextlib.suppress(AssertionError):  # it may end before or after it first accepts connections
        await site.page(MOMENT="2100-01-01T00:00:00+00:00", **values).run("restore")
    assert postmaster(data) is None
    assert "recovery ended before configured recovery target was reached" in (data / "log").read_text()


async def test_a_dump_is_restored_into_another_postgres(site: Site, clusters: Path) -> None:
    url = await site.set_up()
    page = site.page()
    async with patient_client(url) as http, contextlib.AsyncExitStack() as stack:
        agents = [Agent(http, f"agent{number}") for number in range(AGENTS)]
        for agent in agents:
            await agent.begin()
            await agent.take_turns(ROUNDS)
        before = [(agent, list(agent.events), dict(agent.calls), dict(agent.reported)) for agent in agents]
        living = [asyncio.create_task(agent.take_turns(ROUNDS)) for agent in agents]
        stack.callback(lambda: [task.cancel() for task in living])
        await page.run("dump")
        await asyncio.gather(*living)
    await make_cluster(clusters / "restored", site.ports[1])
    await page.run("restore_dump")
    async with patient_client(await site.serve(1)) as http:
        for agent, events, calls, reported in before:
            there = await event_ids(http, agent.session)
            assert there == agent.events[: len(there)] and len(there) >= len(events)
            assert set(calls) <= set(await check_calls(http, agent.session, calls, reported)) <= set(agent.calls)
        assert (await verify(str(http.base_url))).endswith("0 do not")
        again = Agent(http, "later")
        await again.begin()
        await again.take_turns(2)
        await wait_for_compaction(http, "agent0")


async def test_the_folder_of_serve_is_copied_when_it_is_stopped_and_backed_up_while_it_runs(
    site: Site, commands: Commands
) -> None:
    page = site.page()
    serve = await commands.start("serve")
    async with patient_client(await serve.url()) as http:
        agent = Agent(http, "s")
        await agent.begin()
        await agent.take_turns(ROUNDS)
        living = asyncio.create_task(agent.take_turns(ROUNDS))
        before = list(agent.events), dict(agent.calls), dict(agent.reported)
        await page.run("online")
        await living
    printing = ("export PATH=", "echo "), (".venv/bin/python", "python")
    folder = await page.run("programs", *printing, as_current_user=True)
    assert folder.startswith(f"{embedded.BINARIES}:")
    assert (await serve.stop())[0] == 0
    await page.run("copy", as_current_user=True)
    copy = Path(str(site.values["SERVE_COPY"]))
    everything = list(agent.events), dict(agent.calls), dict(agent.reported)
    for folder, (events, calls, reported) in ((copy, everything), (copy.with_name(f"{copy.name}.online"), before)):
        restored = await commands.start("serve", DATA_DIR=str(folder))
        async with patient_client(await restored.url()) as http:
            there = await event_ids(http, "s")
            assert there == agent.events[: len(there)] and len(there) >= len(events)
            assert set(calls) <= set(await check_calls(http, "s", calls, reported))
            assert (await verify(str(http.base_url))).endswith("0 do not")
        assert (await restored.stop())[0] == 0


def test_every_step_of_the_page_is_run(site: Site) -> None:
    """The tests above run every step, and `verify` as a command."""
    tested = Path(__file__).read_text(encoding="utf-8")
    for step in site.page().left - {"verify"}:
        assert f'.run("{step}"' in tested, step
