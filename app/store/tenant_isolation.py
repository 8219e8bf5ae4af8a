"""The check that the database isolates tenants, made once before a server or worker starts."""

from typing import Final

import asyncpg

from app.store.driver import connect
from app.store.engine import ROLE

_OURS: Final = "polname = 'palimpsest_tenant'"
_FIND_TABLES: Final = "SELECT count(*) FILTER (WHERE pg_table_is_visible(polrelid)) FROM pg_policy WHERE " + _OURS
_HELD: Final = "SELECT coalesce(bool_and(row_security_active(polrelid)), false) FROM pg_policy WHERE " + _OURS


class TenantIsolationError(Exception):
    """The database would show one tenant's rows to another, or no rows at all; the message says how to fix it."""


async def check(url: str) -> None:
    """Raise TenantIsolationError unless this login may act as the application's role under row-level security."""
    try:
        connection = await connect(url, server_settings={"role": ROLE})
    except (asyncpg.InvalidParameterValueError, asyncpg.InsufficientPrivilegeError) as error:
        raise TenantIsolationError(f"this login may not act as the role {ROLE}: GRANT {ROLE} TO it ({error})") from None
    try:
        if not await connection.fetchval(_FIND_TABLES):
            raise TenantIsolationError(
                f"the role {ROLE} does not find the tables: have this login's search_path name their schema"
            )
        if not await connection.fetchval(_HELD):
            raise TenantIsolationError(
                f"the role {ROLE} would see every tenant's rows: it must be no superuser, own no table and have"
                " neither BYPASSRLS nor what the tables' owner has"
            )
    finally:
        await connection.close()


async def check_owner(url: str) -> None:
    """Raise TenantIsolationError unless this login sees every tenant's rows, as commands about all tenants need."""
    connection = await connect(url)
    try:
        if await connection.fetchval("SELECT bool_or(row_security_active(polrelid)) FROM pg_policy WHERE " + _OURS):
            raise TenantIsolationError(
                "keys are every tenant's: this needs the login that migrates, which owns the tables"
            )
    finally:
        await connection.close()
