"""Empty databases for migrations."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.support.databases import unmigrated


@pytest.fixture
async def empty(postgres: str) -> AsyncIterator[Callable[[], Any]]:
    """Return a function that creates empty databases."""
    async with AsyncExitStack() as made:

        async def make() -> str:
            return await made.enter_async_context(unmigrated(postgres))

        yield make


@pytest.fixture
async def url(empty: Callable[[], Any]) -> str:
    """Return the URL of an empty database."""
    return str(await empty())
