"""Row-level security in the database, and the tenant setting of connections."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from uuid import UUID, uuid4

import asyncpg
import httpx
import pytest
from sqlalchemy.engine import make_url

from app.runtime import wiring
from app.runtime.settings import Settings
from app.store import embedded, migrate, sessions
from app.store.dsn import for_asyncpg
from app.store.engine import ROLE, Database, acting_for
from app.store.session_filter import SessionFilter
from app.tenants import DEFAULT_TENANT
from app.worker import run
from tests.conftest import serving
from tests.support.folders import data_folder
from tests.support.pooler import needs_pgbouncer, pgbouncer
from tests.support.sse import streaming, take
from tests.support.statements import ServerLog

NOBODYS = {"alembic_version", "pgqueuer", "pgqueuer_log", "pgqueuer_schedules", "pgqueuer_statistics", "work_counts"}
"""Tables without a tenant's data except ids."""
ACROSS = {
    "palimpsest_across_compactions",
    "palimpsest_across_degraded",
    "palimpsest_across_deliveries",
    "palimpsest_across_delivery",
    "palimpsest_across_erasures",
    "palimpsest_across_expired",
    "palimpsest_across_key",
    "palimpsest_across_keys_made",
    "palimpsest_across_layers",
    "palimpsest_across_purge",
    "palimpsest_across_retention",
    "palimpsest_across_spend",
    "palimpsest_hits",
}
"""Functions that run as the owner; the migration that made each gives the reason, for most 0013."""
SET_TO = "SELECT current_setting('palimpsest.tenant', true) AS tenant, current_user AS role, pg_backend_pid() AS pid"


async def test_every_table_has_row_security_or_no_tenants_data(database: Database) -> None:
    """A new table fails this test until it is added to one of the two groups."""
    rows = await database.fetch(
        "SELECT c.relname AS name, c.relrowsecurity AS on, EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid "
        "AND a.attname = 'tenant_id') AS owned, ARRAY(SELECT (polpermissive, polcmd, polroles, polwithcheck IS NULL, "
        "pg_get_expr(polqual, polrelid))::text FROM pg_policy WHERE polrelid = c.oid) AS policies FROM pg_class c "
        "WHERE c.relkind IN ('r', 'p') AND c.relnamespace = 'public'::regnamespace"
    )
    assert {row["name"] for row in rows if not row["on"]} == NOBODYS
    for row in rows:
        assert row["owned"] == row["on"], row["name"]
        if row["on"]:
            [policy] = row["policies"]
            assert policy.startswith("(t,*,{0},t,"), row["name"]  # for every command and role, for reads and writes
            assert "tenant_id = ( SELECT" in policy and "'palimpsest.tenant'" in policy, row["name"]


async def test_the_application_owns_nothing_and_is_no_superuser(application: Database) -> None:
    row = await application.fetchrow(
        "SELECT rolname, rolsuper OR rolbypassrls OR rolcreaterole OR rolcreatedb OR rolcanlogin OR rolreplication "
        "AS mighty, (SELECT count(*) FROM pg_class WHERE relowner = r.oid) AS owned, "
        "(SELECT count(*) FROM pg_auth_members WHERE member = r.oid) AS member_of, "
        "has_schema_privilege('public', 'CREATE') AS makes FROM pg_roles r WHERE rolname = current_user"
    )
    assert row is not None and tuple(row.values()) == (ROLE, False, 0, 0, False)
    for statement in ("TRUNCATE events", "ALTER TABLE events DISABLE ROW LEVEL SECURITY", "DELETE FROM tenants"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await application.execute(statement)


async def test_functions_of_the_owner_are_known_and_only_for_the_application(database: Database) -> None:
    rows = await database.fetch(
        "SELECT proname AS name, proconfig::text AS settings, "
        "EXISTS (SELECT FROM aclexplode(proacl) WHERE grantee = 0) AS anybodys "
        "FROM pg_proc WHERE prosecdef AND pronamespace = 'public'::regnamespace"
    )
    assert {row["name"] for row in rows} == ACROSS
    for row in rows:
        assert (row["settings"], row["anybodys"]) == ('{"search_path=public, pg_temp"}', False), row["name"]


async def current_tenant(database: Database) -> tuple[UUID | None, int]:
    """Return the tenant that a connection is set to, and the pid of its server process."""
    row = await database.fetchrow(SET_TO)
    assert row is not None and row["role"] == ROLE
    return UUID(row["tenant"]) if row["tenant"] else None, row["pid"]


async def test_a_connection_is_set_to_the_acting_tenant_only(database_url: str) -> None:
    ours, theirs = uuid4(), uuid4()
    database = Database(database_url, pool_size=1)
    try:
        first = await current_tenant(database)
        assert first[0] is None
        with acting_for(ours):
            assert await current_tenant(database) == (ours, first[1])
            with acting_for(theirs):
                async with database.transaction() as tx:
                    row = await tx.fetchrow(SET_TO)
                assert row is not None and row["tenant"] == str(theirs)
            assert (await current_tenant(database))[0] == ours
        assert await current_tenant(database) == (None, first[1])
        with acting_for(ours), pytest.raises(asyncpg.DivisionByZeroError):
            async with database.transaction() as tx:
                await tx.execute("SELECT 1 / 0")
        assert await current_tenant(database) == (None, first[1])
    finally:
        await database.close()


async def test_one_tenant_after_itself_costs_nothing_and_each_turn_one_round_trip(database_url: str) -> None:
    ours, theirs = uuid4(), uuid4()
    log = await ServerLog.begin(database_url)
    database = Database(database_url, pool_size=1)
    try:
        with acting_for(ours):
            for _ in range(10):
                await current_tenant(database)
                async with database.transaction() as tx:
                    await tx.fetchrow(SET_TO)
        with acting_for(theirs):
            await current_tenant(database)
        await current_tenant(database)
    finally:
        await database.close()
    turns = [one.sql for one in log.statements() if one.sql.startswith("SET ")]
    assert turns == [f"SET palimpsest.tenant = '{tenant}'" for tenant in (ours, theirs, "")]


async def test_a_connection_cancelled_while_being_set_is_set_again(database_url: str) -> None:
    database = Database(database_url, pool_size=1)
    try:
        for steps in range(6):
            with acting_for(uuid4()):
                asking = asyncio.ensure_future(current_tenant(database))
                for _ in range(steps):
                    await asyncio.sleep(0)  # each iteration cancels one step of the loop later
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
            with acting_for(DEFAULT_TENANT):
                assert (await current_tenant(database))[0] == DEFAULT_TENANT
            assert (await current_tenant(database))[0] is None
    finally:
        await database.close()


async def test_tasks_act_each_for_its_own(database_url: str) -> None:
    database = Database(database_url, pool_size=2)

    async def act(tenant_id: UUID) -> bool:
        with acting_for(tenant_id):
            return all([(await current_tenant(database))[0] == tenant_id for _ in range(20)])

    try:
        assert all(await asyncio.gather(*(act(uuid4()) for _ in range(8))))
    finally:
        await database.close()


async def test_a_write_for_another_tenant_is_refused(application: Database) -> None:
    with acting_for(uuid4()), pytest.raises(asyncpg.InsufficientPrivilegeError, match="row-level security"):
        await sessions.create(application, DEFAULT_TENANT, "s", sessions.SessionSettings(), estimator="heuristic")
    with acting_for(DEFAULT_TENANT):
        assert await sessions.create(
            application, DEFAULT_TENANT, "s", sessions.SessionSettings(), estimator="heuristic"
        )
        assert (await sessions.page(application, DEFAULT_TENANT, 10, None, SessionFilter()))[0]
    assert (await sessions.page(application, DEFAULT_TENANT, 10, None, SessionFilter()))[0] == []


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """Start a server of its own, without the role."""
    with data_folder() as folder:
        server = embedded.start(folder)
        yield server.url
        server.stop()


@asynccontextmanager
async def administered(url: str, *statements: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(for_asyncpg(url))
    try:
        for statement in statements:
            await connection.execute(statement)
        yield connection
    finally:
        await connection.close()


def as_login(url: str, login: str, database: str) -> str:
    return make_url(url).set(username=login, database=database).render_as_string(hide_password=False)


@pytest.mark.embedded("a server of its own, where the role was never made")
async def test_a_login_without_createrole_gets_instructions(cluster: str) -> None:
    url = as_login(cluster, "modest", "modests")
    async with administered(cluster, "CREATE ROLE modest LOGIN", "CREATE DATABASE modests OWNER modest") as admin:
        with pytest.raises(Exception, match="CREATE ROLE palimpsest_app NOLOGIN; GRANT palimpsest_app TO modest;"):
            await migrate.upgrade(url)
        await admin.execute("CREATE ROLE palimpsest_app NOLOGIN")
        with pytest.raises(Exception, match="GRANT palimpsest_app TO modest;"):
            await migrate.upgrade(url)
        await admin.execute("GRANT palimpsest_app TO modest")
        await migrate.upgrade(url)
        await migrate.check_isolation(url)
        await migrate.check_owner(url)

        # A login that only serves need not own anything; it only needs to act as the role.
        await admin.execute("CREATE ROLE server LOGIN IN ROLE palimpsest_app")
        await migrate.check_isolation(as_login(cluster, "server", "modests"))
        with pytest.raises(migrate.TenantIsolationError, match="the login that migrates"):
            await migrate.check_owner(as_login(cluster, "server", "modests"))
        await admin.execute("CREATE ROLE stranger LOGIN")
        with pytest.raises(migrate.TenantIsolationError, match="GRANT palimpsest_app TO it"):
            await migrate.check_isolation(as_login(cluster, "stranger", "modests"))

        for might, no_more in (("BYPASSRLS", "NOBYPASSRLS"), ("SUPERUSER", "NOSUPERUSER")):
            await admin.execute(f"ALTER ROLE palimpsest_app {might}")
            with pytest.raises(migrate.TenantIsolationError, match="would see every tenant's rows"):
                await migrate.check_isolation(url)
            await admin.execute(f"ALTER ROLE palimpsest_app {no_more}")
        await migrate.check_isolation(url)


@pytest.mark.embedded("a server of its own, where the role was never made")
async def test_a_login_that_may_make_roles_makes_it_and_may_act_as_it(cluster: str) -> None:
    async with administered(
        cluster,
        "DROP DATABASE IF EXISTS modests WITH (FORCE)",
        "DROP ROLE IF EXISTS palimpsest_app",
        "CREATE ROLE maker LOGIN CREATEROLE",
        "CREATE DATABASE makers OWNER maker",
    ):
        url = as_login(cluster, "maker", "makers")
        await migrate.upgrade(url)
        await migrate.check_isolation(url)


@needs_pgbouncer
async def test_behind_a_transaction_pooler_each_transaction_sets_its_tenant(database_url: str) -> None:
    """Six connections of ours share one of the server's."""
    with pgbouncer(database_url, default_pool_size=1) as pooler:
        database = Database(database_url, pool_size=6, pooler_url=pooler.url(database_url))

        async def act(tenant_id: UUID) -> set[int]:
            pids = set()
            for _ in range(5):
                with acting_for(tenant_id):
                    alone, pid = await current_tenant(database)
                    async with database.transaction() as tx:
                        row = await tx.fetchrow(SET_TO)
                assert row is not None and (alone, row["tenant"]) == (tenant_id, str(tenant_id))
                assert (await current_tenant(database))[0] is None
                pids.add(pid)
            return pids

        try:
            [[_]] = [set.union(*await asyncio.gather(*(act(uuid4()) for _ in range(6))))]
            with acting_for(DEFAULT_TENANT):
                assert await sessions.create(
                    database, DEFAULT_TENANT, "s", sessions.SessionSettings(), estimator="heuristic"
                )
                assert len((await sessions.page(database, DEFAULT_TENANT, 10, None, SessionFilter()))[0]) == 1
            assert (await sessions.page(database, DEFAULT_TENANT, 10, None, SessionFilter()))[0] == []
        finally:
            await database.close()


@pytest.mark.wing("stream")
@needs_pgbouncer
async def test_statements_that_a_pooler_refuses_go_to_the_server(database_url: str, database: Database) -> None:
    """Covers the API and a worker through the pooler: an append, a context, a compaction, a stream."""
    with pgbouncer(database_url) as pooler:
        settings = Settings(database_url=database_url, database_pooler_url=pooler.url(database_url))
        stop = asyncio.Event()
        running = asyncio.create_task(run(database_url, stop, wiring.worker_work(settings)))
        async with serving(settings, database_url) as url, httpx.AsyncClient(base_url=url, timeout=60) as http:
            event = {"type": "user.message", "content": "hello"}
            for _ in range(3):
                assert (await http.post("/v1/sessions/s/events", json={"events": [event]})).status_code == 201
                assert (await http.get("/v1/sessions/s/context")).status_code == 200
            made = await http.post("/v1/sessions/s/compactions", json={"wait_ms": 30_000})
            assert made.json()["state"] == "skipped", made.text
            async with streaming(url, "/v1/sessions/s/stream", types="appended") as events:
                assert len(await take(events, 3)) == 3
                assert (await http.post("/v1/sessions/s/events", json={"events": [event]})).status_code == 201
                assert [told.data["seq"] for told in await take(events, 1)] == [4]
        stop.set()
        await running
