"""A coordinator and two workers on loopback, for as long as these tests run."""

from collections.abc import AsyncIterator, Iterator

import asyncpg
import pytest

from app.store import distribute, migrate
from app.store.dsn import checked
from tests.citus import nodes


@pytest.fixture(scope="session")
def cluster() -> Iterator[nodes.Cluster]:
    """A running cluster. Without Citus the test is skipped."""
    if reason := nodes.missing():
        pytest.skip(reason)
    with nodes.running(workers=2) as started:
        yield started


@pytest.fixture
async def migrated_url(cluster: nodes.Cluster) -> AsyncIterator[str]:
    """A migrated database on the cluster, all of it on the coordinator still."""
    url = await cluster.make("of_a_test")
    await migrate.upgrade(checked(url))
    yield url
    await cluster.drop("of_a_test")


@pytest.fixture(scope="module")
async def one_url(cluster: nodes.Cluster) -> AsyncIterator[str]:
    """A migrated database on the coordinator alone, which the tests of a module share."""
    url = await cluster.make("of_one")
    await migrate.upgrade(checked(url))
    yield url
    await cluster.drop("of_one")


@pytest.fixture(scope="module")
async def shards_url(cluster: nodes.Cluster) -> AsyncIterator[str]:
    """A distributed database, which the tests of a module share."""
    url = await cluster.make("of_shards")
    await migrate.upgrade(checked(url))
    connection = await asyncpg.connect(url)
    async with connection.transaction():
        await distribute.lay_out(connection, shards=4)
    await connection.close()
    yield url
    await cluster.drop("of_shards")
