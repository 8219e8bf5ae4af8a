"""Connections to the first of a database's hosts that accepts one, as libpq does it.

The driver's own search has one time limit for all hosts: a machine that is gone without a word would use it up, and the
one that was promoted in its place would never be tried.
"""

from contextlib import suppress
from typing import Any, Final

import asyncpg

from app.store import dsn

CONNECT_SECONDS: Final = 10.0
HOST_SECONDS: Final = 3.0
"""Time limit of each host if there are several: two silent ones leave time for the third."""

UNREACHABLE: Final = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.ObjectNotInPrerequisiteStateError,  # a database that takes no connections (ALLOW_CONNECTIONS false)
    asyncpg.TooManyConnectionsError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.InternalClientError,  # use of a half-closed connection; a host that takes no writes
)
"""Errors by which a host cannot be used now, but may be later."""


async def connect(url: str, **options: Any) -> asyncpg.Connection:
    """Open a connection to the first host that accepts one. Raises the last host's error, or one no host would cure."""
    *others, last = dsn.hosts(url)
    for one in others:
        with suppress(*UNREACHABLE):
            return await asyncpg.connect(one, timeout=HOST_SECONDS, **options)
    return await asyncpg.connect(last, timeout=HOST_SECONDS if others else CONNECT_SECONDS, **options)
