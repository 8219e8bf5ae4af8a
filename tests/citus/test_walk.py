"""A server and a worker on a distributed database: every operation of the API, and its stored results."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta

import httpx
import pytest

from app import worker
from app.main import create_app
from app.runtime import wiring
from app.runtime.settings import Settings
from app.runtime.wing import find_placement
from app.store.engine import Database
from app.tenants import SCOPES, Tenants
from tests.conftest import serving
from tests.contract.store.test_tenant_isolation import SHARDS, in_the_code, normal
from tests.support import pooler
from tests.support.deliveries import retrying
from tests.support.receiver import receiving
from tests.support.statements import ServerLog
from tests.support.walk import walk

pytestmark = [pytest.mark.citus, pytest.mark.wing("all")]  # the walk uses them


@pytest.fixture(autouse=True)
def fast_retries() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "DEQUEUE_TIMEOUT", timedelta(seconds=0.1))
        yield


@asynccontextmanager
async def working(settings: Settings, database_url: str) -> AsyncIterator[None]:
    """Run a worker with short pauses between attempts at a delivery."""
    stop = asyncio.Event()
    work = retrying(wiring.worker_work(settings.model_copy(update={"database_url": database_url})), (0.01,))
    running = asyncio.create_task(worker.run(database_url, stop, work))
    try:
        yield
    finally:
        stop.set()
        await running


@pytest.fixture(params=["direct", pytest.param("pooled", marks=pooler.needs_pgbouncer)])
def settings(request: pytest.FixtureRequest, shards_url: str) -> Iterator[Settings]:
    """Return settings for a server on the coordinator, or on a PgBouncer in between."""
    mine = Settings(webhook_private_targets=True)
    if request.param == "direct":
        yield mine
        return
    with pooler.pgbouncer(shards_url) as before:
        yield mine.model_copy(update={"database_pooler_url": before.url(shards_url)})


async def test_every_operation_succeeds(settings: Settings, shards_url: str) -> None:
    owner = Database(shards_url, pool_size=2, role=None, find_placement=find_placement)
    name = f"acme-{'direct' if settings.database_pooler_url is None else 'pooled'}"
    secret = (await Tenants(owner, None).create_key(name, "k", SCOPES)).secret
    log = await ServerLog.begin(shards_url)
    async with receiving() as receiver:
        receiver.statuses.extend([400] * 1_000)
        headers = {"Authorization": f"Bearer {secret}"}
        async with (
            serving(settings, shards_url) as url,
            httpx.AsyncClient(base_url=url, timeout=90, headers=headers) as http,
            working(settings, shards_url),
        ):
            requests = await walk(http, receiver)
    await owner.close()
    paths = create_app(Settings(), shards_url).openapi()["paths"]
    there = {(method.upper(), path) for path, operations in paths.items() for method in operations}
    assert not sorted({(one.method, one.operation) for one in requests} ^ there)
    executed = {normal(one.sql) for one in log.statements()}
    ours = {(where, sql) for where, sql in in_the_code() if where.startswith(SHARDS) and sql is not None}
    assert ours
    assert {where for where, sql in ours if not any(str(sql) in one for one in executed)} == set()
