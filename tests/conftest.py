"""What every test may ask for: a real Postgres, a migrated database of its own, a server over real HTTP."""

import asyncio
import gc
import itertools
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Final

import asyncpg
import httpx
import pytest
import uvloop
from sqlalchemy.engine import make_url
from xdist.remote import Producer

from app.main import create_app
from app.serve import GC_THRESHOLDS, wire_limits
from app.settings import Settings
from app.store import distribute, embedded, migrate
from app.store.engine import Database
from app.worker import run
from tests.citus import nodes
from tests.support import examples, pooler
from tests.support.folders import data_folder
from tests.support.loopback import listening
from tests.support.problems import judge
from tests.support.spreading import Spreading
from tests.support.summarizers import Summarizers, summarizers

IN_HASTE: Final = {"fsync": "off", "full_page_writes": "off", "shared_buffers": "32MB"}
"""Nothing need outlive the machine; and every database that goes is looked for in all of the buffers."""
Servers = tuple[httpx.AsyncClient, httpx.AsyncClient]
_numbers = itertools.count(1)
_administrators: Final[dict[str, asyncpg.Pool]] = {}
"""Connections that make and drop databases, by the server's URL: a new one for each costs as much as half a copy."""

examples.register()
os.environ.pop("SSL_CERT_FILE", None)
os.environ["SSL_CERT_DIR"] = str(Path(__file__).parent)  # nothing speaks TLS here: reading a CA bundle takes 25 ms each
asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())  # the loop that the server runs on


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--recordings", type=Path, help="a folder of recorded sessions (neutral JSONL) to replay")
    parser.addoption("--pooler", action="store_true", help="have servers and workers go through a PgBouncer")
    parser.addoption("--citus", action="store_true", help="have every database distributed over three nodes")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what cannot go through a pooler, for the reason that it has."""
    if not config.getoption("--pooler"):
        return
    if pooler.PROGRAM is None:
        raise pytest.UsageError(pooler.ABSENT)
    for item in items:
        for name, reason in pooler.NOT_THROUGH.items():
            if item.nodeid.split("[")[0] == name or item.nodeid.startswith(f"{name}::"):
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish() -> None:
    """What is there by now stays for good: the collector need not look through it, and as seldom as in the server."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def pytest_xdist_auto_num_workers() -> int:
    """Three processes for two cores: what is tested waits for a third of the time, for a database or a worker."""
    return (os.cpu_count() or 1) * 3 // 2


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Spreading:
    """Tests that share what is dear to make stay together."""
    return Spreading(config, log)


@pytest.fixture(scope="session")
def postgres(pytestconfig: pytest.Config) -> Iterator[str]:
    """The URL of a running embedded Postgres, which need not outlive the machine; with --citus of a coordinator."""
    if pytestconfig.getoption("--citus"):
        if reason := nodes.missing():
            raise pytest.UsageError(reason)
        with nodes.running(workers=2) as cluster:
            yield cluster.url("postgres")
        return
    with data_folder() as folder:
        server = embedded.start(folder, {**embedded.OPTIONS, **IN_HASTE})
        with pooler.before_all(server.url) if pytestconfig.getoption("--pooler") else nullcontext():
            yield server.url
        server.stop()


@pytest.fixture(scope="session")
async def template(postgres: str) -> AsyncIterator[str]:
    """The name of a migrated database that tests copy."""
    url = _url(postgres, "template_palimpsest")
    if cluster := nodes.started(postgres):
        await cluster.make("template_palimpsest")
        await migrate.upgrade(url)
        await distribute.distribute(url, shards=4)
        await cluster.seal("template_palimpsest")
    else:
        await _admin(postgres, "CREATE DATABASE template_palimpsest")
        await migrate.upgrade(url)
    yield "template_palimpsest"
    for server in list(_administrators):
        await _administrators.pop(server).close()


@pytest.fixture
async def database_url(postgres: str, template: str) -> AsyncIterator[str]:
    """A migrated, empty database of the test's own."""
    async with migrated(postgres, template) as url:
        yield url


@asynccontextmanager
async def migrated(postgres: str, template: str) -> AsyncIterator[str]:
    """The URL of a migrated, empty database that goes when the block ends."""
    name = f"test_{next(_numbers)}"
    await _admin(postgres, f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")
    yield _url(postgres, name)
    await _admin(postgres, f"DROP DATABASE {name} WITH (FORCE)")


@asynccontextmanager
async def filled(
    postgres: str, template: str, fill: Callable[[httpx.AsyncClient, Database], Awaitable[None]]
) -> AsyncIterator[str]:
    """The name of a database for tests to copy, with what `fill` puts into it over HTTP and as its owner."""
    async with migrated(postgres, template) as url:
        owner = Database(url, pool_size=4, role=None)
        async with serving(Settings(), url) as base, httpx.AsyncClient(base_url=base, timeout=30, verify=False) as http:
            await fill(http, owner)
        await owner.close()
        name = str(make_url(url).database)
        if pooler.address(url):  # it keeps connections, and a database that has any cannot be copied
            ended = "SELECT pg_terminate_backend(pid, 30000) FROM pg_stat_activity WHERE datname"
            await _admin(postgres, f"{ended} = '{name}'")
        yield name


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """A pool on the test's own database, that looks at it as its owner: at every tenant's rows."""
    pool = Database(database_url, pool_size=4, role=None)
    yield pool
    await pool.close()


@pytest.fixture
async def application(database_url: str) -> AsyncIterator[Database]:
    """A pool on it as the application has one: it sees the rows of the tenant that is acted for."""
    pool = Database(database_url, pool_size=4, pooler_url=pooler.address(database_url))
    yield pool
    await pool.close()


@pytest.fixture
async def server(database_url: str) -> AsyncIterator[str]:
    """The base URL of a server on the test's own database."""
    async with serving(Settings(), database_url) as url:
        yield url


@pytest.fixture
async def stand_in() -> AsyncIterator[Summarizers]:
    """A server that stands in for the summarizers' providers."""
    async with summarizers() as serving_models:
        yield serving_models


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that try again at once what is put off, unless a provider says when."""
    monkeypatch.setattr(run, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(run, "DEQUEUE_TIMEOUT", timedelta(seconds=0.1))


@pytest.fixture
async def client(server: str) -> AsyncIterator[httpx.AsyncClient]:
    """An HTTP client of that server, which looks at every problem that it is answered."""
    hooks = {"response": [judge]}
    async with httpx.AsyncClient(base_url=server, timeout=30, verify=False, event_hooks=hooks) as http:
        yield http  # it reads no certificates


@pytest.fixture
async def servers(client: httpx.AsyncClient, database_url: str) -> AsyncIterator[Servers]:
    """Clients of two servers on one database, each with what it holds in memory; the first is `client`."""
    async with (
        serving(Settings(), database_url) as url,
        httpx.AsyncClient(base_url=url, timeout=30, verify=False, event_hooks=client.event_hooks) as other,
    ):
        yield client, other


@asynccontextmanager
async def serving(settings: Settings, database_url: str) -> AsyncIterator[str]:
    """Serve over real HTTP on a free loopback port, as long as the block lasts."""
    app = create_app(pooler.pooled(settings, database_url), database_url)
    async with listening(app, wire_limits(settings)) as url:
        try:
            yield url
        finally:
            app.state.stopping.set()


async def _admin(url: str, statement: str) -> None:
    """Execute a statement on a server, of a cluster on each of its nodes."""
    cluster = nodes.started(url)
    for server in cluster.urls("postgres") if cluster else [url]:
        if server not in _administrators:
            dsn = make_url(server).set(drivername="postgresql").render_as_string(hide_password=False)
            _administrators[server] = await asyncpg.create_pool(dsn, min_size=0, max_inactive_connection_lifetime=0)
        await _administrators[server].execute(statement)


def _url(url: str, database: str) -> str:
    return make_url(url).set(database=database).render_as_string(hide_password=False)
