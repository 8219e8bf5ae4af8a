"""A connection to whichever of a database's hosts takes it, as libpq looks for one.

The driver's own search gives all hosts one time limit: the first machine that is gone without a word would use it up,
and the one that was promoted in its place would never be asked.
"""

from contextlib import suppress
from typing import Any, Final

import asyncpg

from app.store import dsn

CONNECT_SECONDS: Final = 10.0
HOST_SECONDS: Final = 3.0
"""The time for each host where there are several: two that are silent leave time for the third."""

UNREACHABLE: Final = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.ObjectNotInPrerequisiteStateError,  # a database that takes no connections (ALLOW_CONNECTIONS false)
    asyncpg.TooManyConnectionsError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.InternalClientError,  # using a connection whose end has only half arrived; a host that takes no writes
)
"""What says that a host cannot be used now, and may be later."""


async def connect(url: str, **given: Any) -> asyncpg.Connection:
    """Open a connection to the first host that takes it. Raises what the last one says, or what no host would cure."""
    *others, last = dsn.hosts(url)
    for one in others:
        with suppress(*UNREACHABLE):
            return await asyncpg.connect(one, timeout=HOST_SECONDS, **given)
    return await asyncpg.connect(last, timeout=HOST_SECONDS if others else CONNECT_SECONDS, **given)
