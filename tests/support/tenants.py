"""Tenants with a key of their own, and a worker for tests that walk through the API."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

from app import worker
from app.runtime import wiring
from app.runtime.settings import Settings
from app.store.engine import Database
from app.tenants import SCOPES, Tenants
from tests.support.pooler import pooled


async def tenant(database: Database, name: str) -> tuple[str, UUID]:
    """Create a key with all scopes; return its secret and its tenant's id."""
    secret = (await Tenants(database, None).create_key(name, "k", SCOPES)).secret
    row = await database.fetchrow("SELECT tenant_id FROM tenants WHERE name = :name", name=name)
    assert row is not None
    return secret, row["tenant_id"]


@asynccontextmanager
async def working(database_url: str) -> AsyncIterator[None]:
    """Run a worker that retries deliveries soon, if there are any."""
    stop = asyncio.Event()
    work = wiring.worker_work(pooled(Settings(), database_url))
    try:
        from tests.support.deliveries import retrying
    except ModuleNotFoundError:  # without webhooks
        pass
    else:
        work = retrying(work, (0.01,))
    running = asyncio.create_task(worker.run(database_url, stop, work))
    try:
        yield
    finally:
        stop.set()
        await running
