"""A server that runs the statements of sessions in shards on one Postgres, which accepts them as well.

`make test-more NAME=citus` runs them on Citus. Here they give the results that the statements of one Postgres give.
"""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import httpx
import pytest

from app import worker
from app.runtime import wiring
from app.runtime.settings import Settings
from app.runtime.wing import find_placement
from app.store.engine import Database
from app.tenants import SCOPES, Tenants
from app.wings import shards
from app.wings.shards.distribute import NOTIFYING_TRIGGERS
from tests.conftest import serving
from tests.contract.store.test_tenant_isolation import SHARDS, in_the_code, normal
from tests.support.deliveries import retrying
from tests.support.receiver import receiving
from tests.support.requesting import Loopback
from tests.support.statements import ServerLog
from tests.support.walk import walk

pytestmark = pytest.mark.wing("webhooks")


@pytest.fixture
async def as_in_shards(database_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Database]:
    """Have all pools take this database for a distributed one; return its owner's pool."""

    async def yes(_: object) -> bool:
        return True

    monkeypatch.setattr(shards, "is_distributed", yes)
    monkeypatch.setattr(worker, "DEQUEUE_TIMEOUT", timedelta(seconds=0.1))
    owner = Database(database_url, pool_size=2, role=None, find_placement=find_placement)
    for trigger in NOTIFYING_TRIGGERS:
        await owner.execute(f"DROP TRIGGER IF EXISTS {trigger}")
    yield owner
    await owner.close()


@pytest.mark.wing("all")  # the walk uses them
async def test_every_operation_succeeds_with_the_statements_for_shards(
    as_in_shards: Database, database_url: str
) -> None:
    secret = (await Tenants(as_in_shards, None).create_key("acme", "k", SCOPES)).secret
    settings, stop = Settings(webhook_private_targets=True, database_url=database_url), asyncio.Event()
    log = await ServerLog.begin(database_url)
    async with receiving() as receiver:
        receiver.statuses.extend([400] * 1_000)
        async with (
            serving(settings, database_url) as url,
            httpx.AsyncClient(
                base_url=url, timeout=90, transport=Loopback(), headers={"Authorization": f"Bearer {secret}"}
            ) as http,
        ):
            running = asyncio.create_task(
                worker.run(database_url, stop, retrying(wiring.worker_work(settings), (0.01,)))
            )
            try:
                await walk(http, receiver)
            finally:
                stop.set()
                await running
    executed = {normal(one.sql) for one in log.statements()}
    ours = {(where, sql) for where, sql in in_the_code() if where.startswith(SHARDS) and sql is not None}
    assert ours
    assert {where for where, sql in ours if not any(str(sql) in one for one in executed)} == set()
