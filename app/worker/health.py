"""Health of a worker, as another process sees it: it listens on no port, but its database connection has its name."""

import socket
from typing import Final

import asyncpg

from app.store.driver import UNREACHABLE, connect

_NAME_CHARACTERS_MAX: Final = 63  # Postgres truncates longer names; names of containers differ at their end
_WORKER: Final = "palimpsest worker on "
APPLICATION_NAME: Final = _WORKER + socket.gethostname()[len(_WORKER) - _NAME_CHARACTERS_MAX :]
"""Application name of the connections of workers on this machine or in this container. An address would not do, since
routers that translate addresses give many machines the same one."""
_CONNECTED: Final = """
SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = $1 AND datname = current_database())
"""


async def find_problem(database_url: str) -> str | None:
    """Return the problem that keeps the worker of this machine or container from working; None if it works."""
    try:
        connection = await connect(database_url)
        try:
            connected = await connection.fetchval(_CONNECTED, APPLICATION_NAME)
        finally:
            await connection.close()
    except (*UNREACHABLE, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        return f"the database cannot be used: {error}"
    return None if connected else "no worker of this machine is connected to the database"
