"""Distribution of a migrated database: sessions sharded over Citus' workers, shared tables copied to every node.

Tables with a `session_id` are sharded by it, so that a session's rows are stored together. Other tables of a tenant are
copied to every node (reference tables). The queue and the schema's revision stay on the coordinator. All of it is one
transaction, rolled back unless every hot statement then goes to one shard. A repeated run distributes the tables that
later migrations have added.
"""

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

import asyncpg

from app.store.driver import numbered
from app.store.dsn import for_asyncpg
from app.store.engine import ROLE
from app.wings.shards import SHARDS, is_distributed
from app.wings.shards.placement import SHARD_SETTINGS
from app.wings.shards.statements import HOT

ROOT: Final = "sessions"
"""The table that a session's other tables are colocated with."""
_LOCK: Final = 0x70616C69646973  # the key of an advisory lock, so that two runs take turns

# Settings of the database. A tenant set for a transaction must also be set on the shards' nodes. Triggers run on the
# shards: those kept there read nothing but their own row.
_SETTINGS: Final = {"citus.propagate_set_commands": "local", "citus.enable_unsafe_triggers": "on"}


class CannotDistribute(Exception):
    """The database cannot be distributed as it is; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Tables:
    """Tables by location: sharded by session, copied to every node, or on the coordinator alone."""

    sharded: Sequence[str]
    copied: Sequence[str]
    local: Sequence[str]


# Citus wants the session in every constraint. The constraint that this one replaces compares uuids by a range type of
# the database, which the workers do not have.
_LIVE_CONSTRAINT: Final = (
    "ALTER TABLE summaries ADD CONSTRAINT summaries_live_excl EXCLUDE USING gist (session_id WITH =, cover_id WITH =, "
    "int8range(from_seq, to_seq, '[]') WITH &&) WHERE (status = 'live')"
)
# These triggers write the queue and notify, which must happen on the coordinator; with shards they would run on a
# worker.
NOTIFYING_TRIGGERS: Final = (
    "epochs_change ON epochs",
    "compactions_change ON compactions",
    "compactions_change_begun ON compactions",
)

_IS_TENANTS: Final = "tenant_id = nullif(current_setting('palimpsest.tenant', true), '')::uuid"
# Citus allows no subquery in a policy, so later migrations must create none either.
_ISOLATION_FUNCTION: Final = f"""
CREATE OR REPLACE FUNCTION palimpsest_wall(tenants_own regclass) RETURNS VOID LANGUAGE plpgsql
SET search_path FROM CURRENT AS $$
BEGIN
    EXECUTE format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY', tenants_own);
    EXECUTE format('CREATE POLICY palimpsest_tenant ON %s USING ({_IS_TENANTS.replace("'", "''")})', tenants_own);
    EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON %s TO {ROLE}', tenants_own);
END
$$
"""
# Writing to a table that is on every node requires the right to change its rows. No policy of this one lets rows be
# changed.
_CONTENT_KEYS_POLICIES: Final = (
    "DROP POLICY palimpsest_tenant ON content_keys",
    f"CREATE POLICY palimpsest_tenant ON content_keys FOR SELECT USING ({_IS_TENANTS})",
    f"CREATE POLICY palimpsest_tenant_new ON content_keys FOR INSERT WITH CHECK ({_IS_TENANTS})",
    f"GRANT UPDATE ON content_keys TO {ROLE}",
)

_TABLES: Final = """
SELECT c.relname::text AS name, EXISTS (SELECT FROM pg_policy WHERE polrelid = c.oid) AS walled, EXISTS (
    SELECT FROM pg_attribute WHERE attrelid = c.oid AND attname = 'session_id' AND NOT attisdropped) AS sessions_own
FROM pg_class c WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind = 'r' AND NOT EXISTS (
    SELECT FROM pg_depend d WHERE d.objid = c.oid AND d.deptype = 'e')
ORDER BY c.relname <> 'sessions', c.relname
"""
_PLACED: Final = """
SELECT logicalrelid::text AS name FROM pg_dist_partition WHERE partmethod = 'h' OR partmethod = 'n' AND repmodel = 't'
"""
_FOREIGN_KEYS: Final = """
SELECT conrelid::regclass::text AS on_table, quote_ident(conname) AS name, pg_get_constraintdef(oid) AS definition
FROM pg_constraint WHERE contype = 'f' AND connamespace = current_schema()::regnamespace ORDER BY 1, 2
"""


async def distribute(url: str, shards: int = SHARDS) -> None:
    """Distribute the tables that are not distributed yet. Raises CannotDistribute, and then changes nothing."""
    async with _locked_connection(url) as connection:
        await check_ready(connection)
        async with connection.transaction():
            if not await distribute_tables(connection, shards):
                return
            for name, sql in HOT.items():
                found = await _route(connection, name, sql)
                if not found.to_one_shard:
                    raise CannotDistribute(f"nothing was changed: {name} would not go to one shard: {found.reason}")


async def check(url: str) -> list["Route"]:
    """Return the routing of each hot statement. Raises CannotDistribute if the database is not distributed."""
    async with _locked_connection(url) as connection:
        if not await is_distributed(connection):
            raise CannotDistribute("this database is not distributed")
        return [await _route(connection, name, sql) for name, sql in HOT.items()]


async def plan_statements(url: str, shards: int = SHARDS) -> list[str]:
    """Return the statements that `distribute` would execute. Raises CannotDistribute."""
    async with _locked_connection(url) as connection:
        await check_ready(connection)
        return await steps(connection, shards)


@asynccontextmanager
async def _locked_connection(url: str) -> AsyncIterator[asyncpg.Connection]:
    """Connect to the database, one run at a time."""
    connection = await asyncpg.connect(for_asyncpg(url), server_settings={"client_min_messages": "warning"})
    try:
        await connection.execute("SELECT pg_advisory_lock($1)", _LOCK)  # until the connection is closed
        yield connection
    finally:
        await connection.close()


async def tables(connection: asyncpg.Connection) -> Tables:
    """Return the tables by location, which follows from their columns and policies."""
    rows = await connection.fetch(_TABLES)
    return Tables(
        [row["name"] for row in rows if row["sessions_own"]],
        [row["name"] for row in rows if row["walled"] and not row["sessions_own"]],
        [row["name"] for row in rows if not row["walled"] and not row["sessions_own"]],
    )


async def check_ready(connection: asyncpg.Connection) -> None:
    """Raise CannotDistribute unless Citus is installed, it has workers, and this login is a superuser."""
    if await connection.fetchval("SELECT extname FROM pg_extension WHERE extname = 'citus'") is None:
        raise CannotDistribute("this database has no Citus: CREATE EXTENSION citus on every node, then add the workers")
    if not await connection.fetchval("SELECT count(*) FROM citus_get_active_worker_nodes()"):
        raise CannotDistribute(
            "Citus knows no worker: SELECT citus_add_node('host', port) for each, on the coordinator"
        )
    if not await connection.fetchval("SELECT rolsuper FROM pg_roles WHERE rolname = current_user"):
        raise CannotDistribute("Citus has a superuser distribute tables that have triggers; this login is none")


async def distribute_tables(connection: asyncpg.Connection, shards: int = SHARDS) -> bool:
    """Distribute the tables in the caller's transaction; return False if all are in place. Raises CannotDistribute."""
    needed = await steps(connection, shards)
    for step in needed:
        try:
            await connection.execute(step)
        except asyncpg.PostgresError as error:
            raise CannotDistribute(f"nothing was changed: {step}: {error}") from error
    return bool(needed)


async def steps(connection: asyncpg.Connection, shards: int = SHARDS) -> list[str]:
    """Return the statements that distribute the tables not distributed yet, in order."""
    where = await tables(connection)
    placed = {row["name"] for row in await connection.fetch(_PLACED)}
    copied, sharded = ([name for name in names if name not in placed] for names in (where.copied, where.sharded))
    new = (*copied, *sharded)
    if not new:
        return []
    keys = [key for key in await connection.fetch(_FOREIGN_KEYS) if key["on_table"] in new]
    return [
        "SET LOCAL citus.multi_shard_modify_mode = 'sequential'",
        *(f"SET LOCAL {name} = '{value}'" for name, value in _SETTINGS.items()),
        f"SET LOCAL citus.shard_count = {shards}",
        "SET LOCAL session_replication_role = replica",
        *(await _first_steps(connection) if ROOT in new else ()),
        *(f"ALTER POLICY palimpsest_tenant ON {name} USING ({_IS_TENANTS})" for name in new),
        *(_CONTENT_KEYS_POLICIES if "content_keys" in new else ()),
        *(f"ALTER TABLE {key['on_table']} DROP CONSTRAINT {key['name']}" for key in keys),
        *(f"SELECT create_reference_table('{name}')" for name in copied),
        *(
            f"SELECT create_distributed_table('{name}', 'session_id', "
            f"colocate_with := '{'default' if name == ROOT else ROOT}')"
            for name in sharded
        ),
        *(f"ALTER TABLE {key['on_table']} ADD CONSTRAINT {key['name']} {key['definition']}" for key in keys),
    ]


async def _first_steps(connection: asyncpg.Connection) -> list[str]:
    """Return the statements that prepare a database in which nothing is distributed yet."""
    database = await connection.fetchval("SELECT quote_ident(current_database())")
    return [
        *(f"ALTER DATABASE {database} SET {name} = '{value}'" for name, value in _SETTINGS.items()),
        "CREATE EXTENSION IF NOT EXISTS btree_gist",
        # Nodes connect to each other as the application's role.
        f"ALTER ROLE {ROLE} LOGIN",
        # A session's id is derived from its tenant and its name: where ids are unique, names are.
        "ALTER TABLE sessions DROP CONSTRAINT IF EXISTS sessions_tenant_id_external_id_key",
        "ALTER TABLE summaries DROP CONSTRAINT summaries_live_excl",
        _LIVE_CONSTRAINT,
        *(f"DROP TRIGGER IF EXISTS {trigger}" for trigger in NOTIFYING_TRIGGERS),
        _ISOLATION_FUNCTION,
    ]


_SAMPLES: Final = {
    "boolean": "true",
    "uuid": "'00000000-0000-4000-8000-000000000001'",
    "timestamp with time zone": "now()",
    "json": "'{}'",
    "jsonb": "'{}'",
    "int8multirange": "'{}'",
}
"""Sample parameters by type; arrays are empty, all others 1. No NULL: the planner knows that nothing equals it."""
_COUNT: Final = re.compile(r"Task Count: (\d+)")


@dataclass(frozen=True, slots=True)
class Route:
    """The routing of a statement. `reason` is Citus' reason if it does not go to one shard."""

    name: str
    to_one_shard: bool
    reason: str


async def _route(connection: asyncpg.Connection, name: str, sql: str) -> Route:
    """Return a statement's routing, from its plan. If Citus refuses the statement, the surrounding transaction is lost:
    Citus does not find its savepoints here."""
    statement = f"routed_{uuid4().hex}"
    try:
        await connection.execute(f"SET plan_cache_mode = {SHARD_SETTINGS['plan_cache_mode']}")
        await connection.execute(f"PREPARE {statement} AS {numbered(sql)[0]}")
        types = await connection.fetchval(
            "SELECT parameter_types::text[] FROM pg_prepared_statements WHERE name = $1", statement
        )
        values = ", ".join("'{}'" if kind.endswith("[]") else _SAMPLES.get(kind, "'1'") for kind in types)
        lines = await connection.fetch(f"EXPLAIN (COSTS OFF) EXECUTE {statement}{values and f'({values})'}")
    except asyncpg.PostgresError as error:
        return Route(name, False, str(error).splitlines()[0])
    plan = "\n".join(line[0] for line in lines)
    counts, failed = _COUNT.findall(plan), "Error:" in plan  # one shard's error
    reason = "its shard refuses it" if failed else f"{' + '.join(counts) or 'no'} tasks"
    return Route(name, counts == ["1"] and not failed, reason)
