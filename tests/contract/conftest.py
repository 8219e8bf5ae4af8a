"""Fixtures of contract tests: a fake provider, a server with its gateway on, its client, and the reads of views."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from app.runtime import wiring
from app.runtime.settings import Settings
from app.store import views
from app.worker import run as run_worker
from tests.conftest import DEFAULTS, own_or_shared, serving
from tests.support.gateways import GatewayReader, gateway_reader, settings
from tests.support.pooler import pooled
from tests.support.provider import Provider, serving_provider
from tests.support.requesting import Loopback
from tests.support.sharing import Shared


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Record the queries that load views."""
    seen: list[str] = []
    for name in ("load", "refresh"):
        real = getattr(views, name)

        def counted(*args: Any, _real: Any = real, _name: str = name, **more: Any) -> Any:
            seen.append(_name)
            return _real(*args, **more)

        monkeypatch.setattr(views, name, counted)
    yield seen


@pytest.fixture(scope="session")
async def _provider() -> AsyncIterator[Provider]:
    async with serving_provider() as found:
        yield found


@pytest.fixture
def provider(_provider: Provider) -> Provider:
    """The fake provider, without requests so far."""
    _provider.reset()
    return _provider


@pytest.fixture
def gateway_settings(provider: Provider) -> Settings:
    """The settings of `gateway`."""
    return settings(provider)


@pytest.fixture
def gateway(request: pytest.FixtureRequest, template: str, gateway_settings: Settings) -> str:
    """The base URL of a server with its gateway on: its own, or shared as `server` is."""
    url: str = own_or_shared(request, "_own_gateway", "_shared_gateway")
    return url


@pytest.fixture
async def _own_gateway(database_url: str, gateway_settings: Settings) -> AsyncIterator[str]:
    async with serving(gateway_settings, database_url) as url:
        yield url


@pytest.fixture
async def _shared_gateway(shared: Shared, gateway_settings: Settings) -> str:
    return await shared.url(gateway_settings)


@pytest.fixture
async def http(gateway: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=gateway, timeout=30, transport=Loopback()) as client:
        yield client


@pytest.fixture
def behind(request: pytest.FixtureRequest) -> GatewayReader:
    """A reader of the gateway's writes to the test's database after its responses."""
    found: GatewayReader = own_or_shared(request, "_own_reader", "_shared_reader")
    return found


@pytest.fixture
async def _own_reader(database_url: str) -> AsyncIterator[GatewayReader]:
    async with gateway_reader(database_url) as found:
        yield found


@pytest.fixture(scope="session")
async def _shared_reader(_shared_servers: Shared) -> AsyncIterator[GatewayReader]:
    async with gateway_reader(_shared_servers.database_url) as found:
        yield found


@pytest.fixture
async def worker(database_url: str) -> AsyncIterator[None]:
    """A worker on the test's database with the extractive summarizer."""
    stop = asyncio.Event()
    running = asyncio.create_task(run_worker(database_url, stop, wiring.worker_work(pooled(DEFAULTS, database_url))))
    yield
    stop.set()
    await running
