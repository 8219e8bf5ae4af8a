"""Fixtures of contract tests: a fake provider, a server with its gateway on, its client, and the reads of views."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from app.runtime import wiring
from app.store import views
from app.worker.run import run as run_worker
from tests.conftest import DEFAULTS, serving
from tests.support.gateways import BackgroundWrites, background_writes, settings
from tests.support.pooler import pooled
from tests.support.provider import Provider, serving_provider
from tests.support.requesting import Loopback


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


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    async with serving_provider() as found:
        yield found


@pytest.fixture
async def gateway(database_url: str, provider: Provider) -> AsyncIterator[str]:
    """The base URL of a server with its gateway on."""
    async with serving(settings(provider), database_url) as url:
        yield url


@pytest.fixture
async def http(gateway: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=gateway, timeout=30, transport=Loopback()) as client:
        yield client


@pytest.fixture(name="behind")
async def _behind(database_url: str) -> AsyncIterator[BackgroundWrites]:
    """A reader of what the gateway writes to the test's database after its responses."""
    async with background_writes(database_url) as found:
        yield found


@pytest.fixture
async def worker(database_url: str) -> AsyncIterator[None]:
    """A worker on the test's database with the extractive summarizer."""
    stop = asyncio.Event()
    running = asyncio.create_task(run_worker(database_url, stop, wiring.worker_work(pooled(DEFAULTS, database_url))))
    yield
    stop.set()
    await running
