"""A coordinator and two workers on loopback, for all tests of this folder."""

from collections.abc import AsyncIterator, Iterator

import asyncpg
import pytest

from app.store import migrate
from app.store.dsn import normalize
from tests.citus import nodes


@pytest.fixture(scope="session")
def cluster() -> Iterator[nodes.Cluster]:
    """Return a running cluster; skip without Citus."""
    if reason := nodes.missing():
        pytest.skip(reason)
    with nodes.running(workers=2) as started:
        yield started


@pytest.fixture
async def migrated_url(cluster: nodes.Cluster) -> AsyncIterator[str]:
    """Return a migrated database on the cluster that is not distributed yet."""
    url = await cluster.make("of_a_test")
    await migrate.upgrade(normalize(url))
    yield url
    await cluster.drop("of_a_test")


@pytest.fixture(scope="module")
async def one_url(cluster: nodes.Cluster) -> AsyncIterator[str]:
    """Return a migrated database on the coordinator alone, shared by the tests of a module."""
    url = await cluster.make("of_one")
    await migrate.upgrade(normalize(url))
    yield url
    await cluster.drop("of_one")


@pytest.fixture(scope="module")
async def shards_url(cluster: nodes.Cluster) -> AsyncIterator[str]:
    """Return a distributed database, shared by the tests of a module."""
    url = await cluster.make("of_shards")
    await migrate.upgrade(normalize(url))
    from app.wings.shards import distribute

    connection = await asyncpg.connect(url)
    async with connection.transaction():
        await distribute.distribute_tables(connection, shards=4)
    await connection.close()
    yield url
    await cluster.drop("of_shards")
