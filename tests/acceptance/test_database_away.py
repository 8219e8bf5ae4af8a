"""A Postgres that becomes available after our processes have started: every start command, with real processes."""

import asyncio
from collections.abc import AsyncIterator
from collections.abc import Set as AbstractSet
from pathlib import Path

import httpx
import psutil
import pytest

from app.store import dsn, migrate
from tests.acceptance.conftest import SECONDS_MAX, Command, Commands
from tests.support.clusters import clusters_folder, free_port, make_cluster, shell
from tests.support.processes import is_running

pytestmark = [pytest.mark.slow, pytest.mark.embedded("a Postgres is stopped and started")]

EVENT = {"type": "user.message", "content": "hello"}


class Cluster:
    """A Postgres that a test stops and starts."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.url = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    async def start(self) -> None:
        await shell(f"pg_ctl -D {self.folder} -l {self.folder}/log -w start >/dev/null")

    async def stop(self) -> None:
        await shell(f"pg_ctl -D {self.folder} -m fast -w stop >/dev/null")


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    """Return a cluster that is migrated and stopped."""
    with clusters_folder() as folder:
        made = Cluster(folder / "data")
        await make_cluster(made.folder, made.port)
        await migrate.upgrade(dsn.normalize(made.url))
        await made.stop()
        yield made


async def append_status(url: str) -> int:
    """Return the status of an append."""
    async with httpx.AsyncClient(base_url=url, timeout=30) as http:
        return (await http.post("/v1/sessions/s/events", json={"events": [EVENT]})).status_code


async def is_ready(url: str) -> None:
    async with asyncio.timeout(SECONDS_MAX), httpx.AsyncClient(base_url=url, timeout=30) as http:
        while (await http.get("/readyz")).status_code != 200:
            pass


def running_children(server: Command) -> set[psutil.Process]:
    """Return a server's running child processes."""
    children = psutil.Process(server.process.pid).children()
    return {one for one in children if is_running(one)}


async def wait_for_two(server: Command, besides: AbstractSet[psutil.Process] = frozenset()) -> set[psutil.Process]:
    """Return the API and the worker of a server, as soon as both are forked."""
    async with asyncio.timeout(SECONDS_MAX):
        while len(found := await asyncio.to_thread(running_children, server) - besides) < 2:
            pass
    return found


async def stop_cleanly(process: Command, *words: str) -> None:
    """Stop a process; assert its success and log lines with these words."""
    status, errors = await process.stop()
    assert status == 0, errors
    for said in words:
        assert any(said in line for line in errors), (said, errors)


@pytest.mark.parametrize("arguments", [("serve",), ("api",), ("api", "--processes", "2")])
async def test_an_api_serves_as_soon_as_its_database_is_available(
    commands: Commands, cluster: Cluster, arguments: tuple[str, ...]
) -> None:
    port = str(free_port())
    api = await commands.start(*arguments, DATABASE_URL=cluster.url, PORT=port)
    await api.expect_line("starting")
    await api.expect_line("waiting for the database")
    url = f"http://127.0.0.1:{port}"
    assert await append_status(url) == 503
    await cluster.start()
    await api.expect_line(f"serving on {url}")
    await is_ready(url)
    assert await append_status(url) == 201
    await stop_cleanly(api, "the database is unreachable", "the database is reachable")


async def test_a_worker_works_as_soon_as_its_database_is_available(commands: Commands, cluster: Cluster) -> None:
    worker = await commands.start("worker", DATABASE_URL=cluster.url)
    await worker.expect_line("starting")
    await worker.expect_line("waiting for the database")
    unhealthy = await commands.start("worker", "--healthy", DATABASE_URL=cluster.url)
    status, errors = await unhealthy.wait()
    assert status == 1 and "the database cannot be used" in errors[0]
    await cluster.start()
    await worker.expect_line("working")
    async with asyncio.timeout(SECONDS_MAX):
        while (await (await commands.start("worker", "--healthy", DATABASE_URL=cluster.url)).wait())[0]:
            pass
    await stop_cleanly(worker, "the database is unreachable", "the database is reachable")


async def test_processes_forked_while_the_database_is_away_wait_for_it(commands: Commands, cluster: Cluster) -> None:
    await cluster.start()
    server = await commands.start("serve", DATABASE_URL=cluster.url)
    url = await server.url()
    before = await wait_for_two(server)
    await cluster.stop()
    for one in before:
        one.kill()
    again = await wait_for_two(server, besides=before)
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            try:
                assert await append_status(url) == 503
                break
            except httpx.TransportError:
                pass
    await cluster.start()
    await is_ready(url)
    assert await append_status(url) == 201
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        run = await http.post("/v1/sessions/s/compactions", json={"wait_ms": 30_000})
        assert run.json()["state"] in ("succeeded", "skipped"), run.text
    assert running_children(server) == again
    await stop_cleanly(server)


@pytest.mark.parametrize("command", ["serve", "api", "worker"])
async def test_permanent_errors_are_reported_once_the_database_responds(
    commands: Commands, cluster: Cluster, command: str
) -> None:
    """The URL names a database that does not exist."""
    process = await commands.start(command, DATABASE_URL=cluster.url.replace("/postgres", "/nothing"))
    await process.expect_line("starting")
    await process.expect_line("waiting for the database")
    await cluster.start()
    status, errors = await process.wait()
    assert status == 1 and "palimpsest: the database cannot be used" in errors[-1], errors
    assert "does not exist" in errors[-1]
