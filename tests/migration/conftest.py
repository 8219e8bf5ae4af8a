"""Empty databases for migrations."""

import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

_numbers = itertools.count(1)


@pytest.fixture
async def empty(postgres: str) -> AsyncIterator[Callable[[], Any]]:
    """Makes empty databases, as many as a test asks for."""
    engine = create_async_engine(postgres, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    made: list[str] = []

    async def make() -> str:
        made.append(f"empty_{next(_numbers)}")
        async with engine.connect() as connection:
            await connection.execute(text(f"CREATE DATABASE {made[-1]}"))
        return make_url(postgres).set(database=made[-1]).render_as_string(hide_password=False)

    yield make
    async with engine.connect() as connection:
        for name in made:
            await connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    await engine.dispose()


@pytest.fixture
async def url(empty: Callable[[], Any]) -> str:
    """An empty database."""
    return str(await empty())
