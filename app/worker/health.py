"""How another process sees that a worker works: it listens on no port, but its database knows it by its machine."""

import socket
from typing import Final

import asyncpg

from app.store.connecting import UNREACHABLE, connect

_NAME_CHARACTERS_MAX: Final = 63  # Postgres cuts off the rest; what tells names of containers apart is at their end
_WORKER: Final = "palimpsest worker on "
APPLICATION_NAME: Final = _WORKER + socket.gethostname()[len(_WORKER) - _NAME_CHARACTERS_MAX :]
"""The name of this machine's or container's workers' connections. An address would not do: many of them share one
behind a router that translates addresses."""
_CONNECTED: Final = """
SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = $1 AND datname = current_database())
"""


async def missing(database_url: str) -> str | None:
    """What keeps the worker of this machine, or of this container, from working; None if nothing is seen to."""
    try:
        connection = await connect(database_url)
        try:
            connected = await connection.fetchval(_CONNECTED, APPLICATION_NAME)
        finally:
            await connection.close()
    except (*UNREACHABLE, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        return f"the database cannot be used: {error}"
    return None if connected else "no worker of this machine has the database"
