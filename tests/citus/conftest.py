"""A coordinator and two workers on loopback, for as long as these tests run."""

from collections.abc import AsyncIterator, Iterator

import pytest

from app.store import migrate
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
