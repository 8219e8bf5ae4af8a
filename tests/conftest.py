"""Fixtures shared by all tests: a Postgres, a migrated database per test, and a server over real HTTP."""

import asyncio
import gc
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import structlog
import uvloop
from sqlalchemy.engine import make_url
from starlette.types import ASGIApp
from xdist.remote import Producer

from app import worker
from app.main import create_app
from app.runtime.serve import GC_THRESHOLDS, wire_limits
from app.runtime.settings import Settings
from app.runtime.wing import find_placement
from app.store.engine import Database
from tests.support import compiling, databases, examples, pooler, wings
from tests.support.databases import migrated
from tests.support.loopback import listening
from tests.support.problems import check_problem
from tests.support.requesting import Loopback
from tests.support.sharing import Shared, shared_servers
from tests.support.spreading import Spreading
from tests.support.summarizers import Summarizers, summarizers

Servers = tuple[httpx.AsyncClient, httpx.AsyncClient]
DEFAULTS: Final = Settings()
"""Settings from the variables of the run, without those of a test; to read all takes 5 ms."""

gc.disable()  # until all tests are collected: looking for garbage among what is imported takes a seventh of the time
examples.register()
CERTIFICATES = os.environ.pop("SSL_CERT_FILE", None)
os.environ["SSL_CERT_DIR"] = str(Path(__file__).parent)  # a CA bundle takes 25 ms to read, and no test speaks TLS
structlog.configure(  # as the server does; a traceback in structlog's own form takes seconds
    [
        *structlog.get_config()["processors"][:-1],
        structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
    ]
)
asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())  # the loop that the server runs on


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--recordings", type=Path, help="a folder of recorded sessions (neutral JSONL) to replay")
    databases.add_options(parser)
    wings.add_option(parser)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select the tests that can run on the database the options name, with the wings that there are."""
    databases.select_tests(config, items)
    wings.select_tests(config, items)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files that need a wing that is not there, and folders named as a marker that `-m` excludes."""
    return wings.is_left_out(collection_path) or compiling.is_excluded(collection_path, config) or None


def pytest_collection(session: pytest.Session) -> None:
    """Import the tests, beginning elsewhere in each process: what one has compiled, the others read."""
    worker: dict[str, Any] | None = getattr(session.config, "workerinput", None)
    if worker and session.config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        compiling.import_share(session.config, int(worker["workerid"].removeprefix("gw")), worker["workercount"])


def pytest_collection_finish() -> None:
    """Freeze the objects created during collection, and collect garbage as rarely as the server does.

    To look for garbage among them first takes 0.7 s of a processor in each process.
    """
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    gc.enable()


def pytest_xdist_auto_num_workers() -> int:
    """Return three processes for two cores: tests spend a third of their time waiting for a database or a worker."""
    return (os.cpu_count() or 1) * 3 // 2


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Spreading:
    """Keep tests that share an expensive fixture in one process."""
    return Spreading(config, log)


@pytest.fixture(scope="session")
def postgres(pytestconfig: pytest.Config) -> Iterator[str]:
    """The URL of a running Postgres that test databases are created on."""
    with databases.server(pytestconfig) as url:
        yield url


@pytest.fixture(scope="session")
async def template(postgres: str) -> AsyncIterator[str]:
    """The name of a migrated database that tests copy."""
    async with databases.template(postgres) as name:
        yield name


@pytest.fixture
async def database_url(postgres: str, template: str) -> AsyncIterator[str]:
    """The URL of a migrated, empty database for one test."""
    async with migrated(postgres, template) as url:
        yield url


@asynccontextmanager
async def filled_database(
    postgres: str, template: str, fill: Callable[[httpx.AsyncClient, Database], Awaitable[None]]
) -> AsyncIterator[str]:
    """Yield the name of a database for tests to copy, filled by `fill` over HTTP and as its owner."""
    async with migrated(postgres, template) as url:
        owner = Database(url, pool_size=4, role=None, find_placement=find_placement)
        async with serving(DEFAULTS, url) as base, asking(base) as http:
            await fill(http, owner)
        await owner.close()
        yield str(make_url(url).database)


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """A pool on the test's database as its owner, who sees the rows of every tenant."""
    pool = Database(database_url, pool_size=4, role=None, find_placement=find_placement)
    yield pool
    await pool.close()


@pytest.fixture
async def application(database_url: str) -> AsyncIterator[Database]:
    """A pool on the test's database as the application, which sees only the rows of the current tenant."""
    pool = Database(database_url, pool_size=4, pooler_url=pooler.address(database_url), find_placement=find_placement)
    yield pool
    await pool.close()


@pytest.fixture
def server(request: pytest.FixtureRequest, template: str) -> str:
    """The base URL of a server.

    A test that also uses `database_url`, or what depends on it, has a server and a database to itself. All others share
    a server, where each is a tenant of its own: a database and a server take longer than most requests.
    """
    return own_or_shared(request, "_own_server", "_shared_server")


def own_or_shared(request: pytest.FixtureRequest, own: str, shared: str) -> Any:
    """Return the value of the fixture `own` if the test has a database to itself, else that of `shared`."""
    return request.getfixturevalue(own if "database_url" in request.fixturenames else shared)


@pytest.fixture
async def _own_server(database_url: str) -> AsyncIterator[str]:
    async with serving(DEFAULTS, database_url) as url:
        yield url


@pytest.fixture(scope="session")
async def _shared_servers(postgres: str, template: str) -> AsyncIterator[Shared]:
    async with migrated(postgres, template) as database_url:
        owner = Database(database_url, pool_size=1, role=None, find_placement=find_placement)
        async with shared_servers(database_url, owner, serving) as servers:
            yield servers
        await owner.close()


@pytest.fixture
async def shared(_shared_servers: Shared) -> Shared:
    """The servers that tests share, with a tenant of this test's own."""
    await _shared_servers.next_tenant()
    return _shared_servers


@pytest.fixture
async def _shared_server(shared: Shared) -> str:
    return await shared.url(DEFAULTS)


@pytest.fixture(scope="session")
async def _summarizers() -> AsyncIterator[Summarizers]:
    async with summarizers() as serving_models:
        yield serving_models


@pytest.fixture
def fake_summarizers(_summarizers: Summarizers) -> Summarizers:
    """The fake server of the summarizers' providers, without requests so far."""
    _summarizers.reset()
    return _summarizers


@pytest.fixture
def fast_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make workers retry immediately unless a provider names a delay."""
    monkeypatch.setattr(worker, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(worker, "DEQUEUE_TIMEOUT", timedelta(seconds=0.1))


@pytest.fixture
async def client(server: str) -> AsyncIterator[httpx.AsyncClient]:
    """An HTTP client of `server` that checks every problem response."""
    async with asking(server) as http:
        yield http


def asking(url: str, **options: Any) -> httpx.AsyncClient:
    """Return an HTTP client of a server that checks every problem response."""
    return httpx.AsyncClient(
        base_url=url, timeout=30, transport=Loopback(), event_hooks={"response": [check_problem]}, **options
    )


@asynccontextmanager
async def asking_alone(postgres: str, template: str) -> AsyncIterator[httpx.AsyncClient]:
    """Yield an HTTP client, as `client` is, of a server on a database of its own."""
    async with (
        migrated(postgres, template) as database_url,
        serving(DEFAULTS, database_url) as url,
        asking(url) as http,
    ):
        yield http


@pytest.fixture(scope="session")
async def refusing(postgres: str, template: str) -> AsyncIterator[httpx.AsyncClient]:
    """An HTTP client of a server that tests share, none of whose requests changes anything."""
    async with asking_alone(postgres, template) as http:
        yield http
        async with asking(str(http.base_url)) as later:  # an idle connection may have reached its end by now
            assert (await later.get("/v1/sessions")).json()["items"] == []


@pytest.fixture
async def servers(client: httpx.AsyncClient, database_url: str) -> AsyncIterator[Servers]:
    """Clients of two servers on one database, each with its own caches; the first is `client`."""
    async with serving(DEFAULTS, database_url) as url, asking(url) as other:
        yield client, other


@asynccontextmanager
async def serving(
    settings: Settings, database_url: str, wrap: Callable[[ASGIApp], ASGIApp] = lambda app: app
) -> AsyncIterator[str]:
    """Serve over real HTTP on a free loopback port until the block ends."""
    app = create_app(pooler.pooled(settings, database_url), database_url)
    async with listening(wrap(app), wire_limits(settings)) as url:
        try:
            yield url
        finally:
            app.state.stopping.set()
