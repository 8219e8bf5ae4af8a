"""Turn a migrated database into a distributed one: sessions over Citus' workers, what all sessions share on every node.

Everything with a `session_id` is sharded by it and lies with its session. What belongs to a tenant is copied to every
node (reference tables). The queue and the revision of the schema stay on the coordinator. All of it is one transaction,
which is undone unless every hot statement goes to one shard then. Done again, it places the tables that a later
migration has made.
"""

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

import asyncpg

from app.store import answers, calls, chain, event_log, lines, log, outcomes, sessions, view_reads
from app.store.driver import is_distributed
from app.store.dsn import for_asyncpg
from app.store.engine import ROLE, SHARD_SETTINGS
from app.store.statements import numbered

ROOT: Final = "sessions"
"""The table that the others of a session lie with."""
SHARDS: Final = 32
_LOCK: Final = 0x70616C69646973  # the key of an advisory lock, so that two runs take turns

# Settings of the database. A tenant is set for a transaction, and must be set on the shards' nodes, too. Triggers run
# on the shards: those left there look at nothing but their own row.
_SETTINGS: Final = {"citus.propagate_set_commands": "local", "citus.enable_unsafe_triggers": "on"}


class CannotDistribute(Exception):
    """The database cannot be distributed as it is; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Tables:
    """What is where: sharded by session, copied to every node, or on the coordinator alone."""

    sharded: Sequence[str]
    copied: Sequence[str]
    local: Sequence[str]


# Within a shard the session is part of the key, as Citus wants of every constraint; the database's own range type,
# which equality of a uuid was made of, is not known on the workers.
_LIVE: Final = (
    "ALTER TABLE summaries ADD CONSTRAINT summaries_live_excl EXCLUDE USING gist (session_id WITH =, cover_id WITH =, "
    "int8range(from_seq, to_seq, '[]') WITH &&) WHERE (status = 'live')"
)
# What these triggers do would be done on a worker: they write the queue and notify on the coordinator.
_TELLING: Final = (
    "epochs_change ON epochs",
    "compactions_change ON compactions",
    "compactions_change_begun ON compactions",
)

_OWN: Final = "tenant_id = nullif(current_setting('palimpsest.tenant', true), '')::uuid"
# Citus takes no subquery in a policy; so migrations to come make none.
_WALL: Final = f"""
CREATE OR REPLACE FUNCTION palimpsest_wall(tenants_own regclass) RETURNS VOID LANGUAGE plpgsql
SET search_path FROM CURRENT AS $$
BEGIN
    EXECUTE format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY', tenants_own);
    EXECUTE format('CREATE POLICY palimpsest_tenant ON %s USING ({_OWN.replace("'", "''")})', tenants_own);
    EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON %s TO {ROLE}', tenants_own);
END
$$
"""
# Who writes to a table that is on every node must be allowed to change its rows. The policies of this one let nobody.
_NOT_CHANGED: Final = (
    "DROP POLICY palimpsest_tenant ON content_keys",
    f"CREATE POLICY palimpsest_tenant ON content_keys FOR SELECT USING ({_OWN})",
    f"CREATE POLICY palimpsest_tenant_new ON content_keys FOR INSERT WITH CHECK ({_OWN})",
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
    """Distribute the database, or what of it is not yet. Raises CannotDistribute, and changes nothing then."""
    async with _connected(url) as connection:
        await check_ready(connection)
        async with connection.transaction():
            if not await lay_out(connection, shards):
                return
            for name, sql in HOT.items():
                found = await _route(connection, name, sql)
                if not found.to_one_shard:
                    raise CannotDistribute(f"nothing was changed: {name} would not go to one shard: {found.said}")


async def check(url: str) -> list["Routed"]:
    """Return where each hot statement of a distributed database goes. Raises CannotDistribute for one that is not."""
    async with _connected(url) as connection:
        if not await is_distributed(connection):
            raise CannotDistribute("this database is not distributed")
        return [await _route(connection, name, sql) for name, sql in HOT.items()]


async def planned(url: str, shards: int = SHARDS) -> list[str]:
    """Return what `distribute` would execute. Raises CannotDistribute."""
    async with _connected(url) as connection:
        await check_ready(connection)
        return await steps(connection, shards)


@asynccontextmanager
async def _connected(url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection on which runs take turns."""
    connection = await asyncpg.connect(for_asyncpg(url), server_settings={"client_min_messages": "warning"})
    try:
        await connection.execute("SELECT pg_advisory_lock($1)", _LOCK)  # until the connection is closed
        yield connection
    finally:
        await connection.close()


async def tables(connection: asyncpg.Connection) -> Tables:
    """Return what belongs where, by the tables' own columns and policies."""
    rows = await connection.fetch(_TABLES)
    return Tables(
        [row["name"] for row in rows if row["sessions_own"]],
        [row["name"] for row in rows if row["walled"] and not row["sessions_own"]],
        [row["name"] for row in rows if not row["walled"] and not row["sessions_own"]],
    )


async def check_ready(connection: asyncpg.Connection) -> None:
    """Raise CannotDistribute unless Citus is there with workers, and this login may do what is to be done."""
    if await connection.fetchval("SELECT extname FROM pg_extension WHERE extname = 'citus'") is None:
        raise CannotDistribute("this database has no Citus: CREATE EXTENSION citus on every node, then add the workers")
    if not await connection.fetchval("SELECT count(*) FROM citus_get_active_worker_nodes()"):
        raise CannotDistribute(
            "Citus knows no worker: SELECT citus_add_node('host', port) for each, on the coordinator"
        )
    if not await connection.fetchval("SELECT rolsuper FROM pg_roles WHERE rolname = current_user"):
        raise CannotDistribute("Citus has a superuser distribute tables that have triggers; this login is none")


async def lay_out(connection: asyncpg.Connection, shards: int = SHARDS) -> bool:
    """Put every table in its place, in the caller's transaction; False if all are there. Raises CannotDistribute."""
    needed = await steps(connection, shards)
    for step in needed:
        try:
            await connection.execute(step)
        except asyncpg.PostgresError as error:
            raise CannotDistribute(f"nothing was changed: {step}: {error}") from error
    return bool(needed)


async def steps(connection: asyncpg.Connection, shards: int = SHARDS) -> list[str]:
    """Return the statements that distribute what is not distributed yet, in their order."""
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
        *(await _at_first(connection) if ROOT in new else ()),
        *(f"ALTER POLICY palimpsest_tenant ON {name} USING ({_OWN})" for name in new),
        *(_NOT_CHANGED if "content_keys" in new else ()),
        *(f"ALTER TABLE {key['on_table']} DROP CONSTRAINT {key['name']}" for key in keys),
        *(f"SELECT create_reference_table('{name}')" for name in copied),
        *(
            f"SELECT create_distributed_table('{name}', 'session_id', "
            f"colocate_with := '{'default' if name == ROOT else ROOT}')"
            for name in sharded
        ),
        *(f"ALTER TABLE {key['on_table']} ADD CONSTRAINT {key['name']} {key['definition']}" for key in keys),
    ]


async def _at_first(connection: asyncpg.Connection) -> list[str]:
    """Return what makes a database ready for shards before anything of it is in any."""
    database = await connection.fetchval("SELECT quote_ident(current_database())")
    return [
        *(f"ALTER DATABASE {database} SET {name} = '{value}'" for name, value in _SETTINGS.items()),
        "CREATE EXTENSION IF NOT EXISTS btree_gist",
        # Nodes connect to each other as the role that acts.
        f"ALTER ROLE {ROLE} LOGIN",
        # A session's id is made of its tenant and its name: where ids are unique, names are.
        "ALTER TABLE sessions DROP CONSTRAINT IF EXISTS sessions_tenant_id_external_id_key",
        "ALTER TABLE summaries DROP CONSTRAINT summaries_live_excl",
        _LIVE,
        *(f"DROP TRIGGER IF EXISTS {trigger}" for trigger in _TELLING),
        _WALL,
    ]


HOT: Final[Mapping[str, str]] = {
    **sessions.HOT,
    **log.HOT,
    **answers.HOT,
    **view_reads.HOT,
    **calls.HOT,
    **event_log.HOT,
    **chain.HOT,
    **lines.HOT,
    **outcomes.HOT,
}
"""What appends and contexts execute, once for each request or more."""

_SAMPLES: Final = {
    "boolean": "true",
    "uuid": "'00000000-0000-4000-8000-000000000001'",
    "timestamp with time zone": "now()",
    "json": "'{}'",
    "jsonb": "'{}'",
    "int8multirange": "'{}'",
}
"""A value for a parameter of a type; an array is empty, all else is 1. Nothing equals NULL, as a planner knows."""
_COUNT: Final = re.compile(r"Task Count: (\d+)")


@dataclass(frozen=True, slots=True)
class Routed:
    """Where a statement goes: to one shard, or else what Citus says of it."""

    name: str
    to_one_shard: bool
    said: str


async def _route(connection: asyncpg.Connection, name: str, sql: str) -> Routed:
    """Return where a statement goes, by its plan.

    Where Citus refuses it, a transaction around this is at its end: here Citus does not find its savepoints again.
    """
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
        return Routed(name, False, str(error).splitlines()[0])
    plan = "\n".join(line[0] for line in lines)
    counts, failed = _COUNT.findall(plan), "Error:" in plan  # what one shard would say of it
    said = "its shard refuses it" if failed else f"{' + '.join(counts) or 'no'} tasks"
    return Routed(name, counts == ["1"] and not failed, said)
