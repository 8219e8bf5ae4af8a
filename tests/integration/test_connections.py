"""Connections of the pool: lent to one caller at a time, always given back, and returned to the driver when free."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from uuid import UUID

import pytest
from sqlalchemy.engine import make_url

from app.core.errors import StoreUnavailable
from app.runtime.wing import find_placement
from app.store import driver
from app.store.engine import Database, Executor, acting_for, reading_from

WHO = "SELECT pg_backend_pid() AS pid"
LONG = "SELECT pg_sleep(60)"
RUNS = "SELECT FROM pg_stat_activity WHERE query = :query AND state = 'active'"


@pytest.fixture
async def single(database_url: str) -> AsyncIterator[Database]:
    """Return a pool of one connection."""
    one = Database(database_url, pool_size=1, role=None, find_placement=find_placement)
    yield one
    await one.close()


async def pid(database: Database) -> int:
    row = await database.fetchrow(WHO)
    assert row is not None
    return int(row["pid"])


async def test_all_waiters_get_the_single_connection(single: Database) -> None:
    own = await pid(single)
    assert await asyncio.gather(*(pid(single) for _ in range(20))) == [own] * 20


async def test_a_transaction_has_a_connection_to_itself(database_url: str) -> None:
    two = Database(database_url, pool_size=2, find_placement=find_placement)
    async with two.transaction() as first, two.transaction() as second:
        rows = [await one.fetchrow(WHO) for one in (first, second)]
    assert len({row["pid"] for row in rows if row}) == 2
    await two.close()


async def test_a_copy_is_read_by_statements_and_transactions_for_the_time_of_a_block(
    single: Database, database: Database
) -> None:
    copy, own = await pid(single), await pid(database)
    with reading_from(single):
        assert await pid(database) == copy
        async with database.transaction() as tx:
            row = await tx.fetchrow(WHO)
        assert row is not None and row["pid"] == copy
    assert await pid(database) == own != copy


async def test_a_failed_statement_and_a_failed_transaction_give_it_back(single: Database) -> None:
    with pytest.raises(StoreUnavailable):
        await single.execute("DO $$ BEGIN RAISE 'no space left on device' USING ERRCODE = 'disk_full'; END $$")
    with pytest.raises(ZeroDivisionError):
        async with single.transaction() as tx:
            await tx.execute("CREATE TEMPORARY TABLE undone (n INT)")
            raise ZeroDivisionError
    row = await single.fetchrow("SELECT to_regclass('undone') AS name")
    assert row is not None
    assert row["name"] is None


async def test_a_cancelled_statement_gives_it_back_when_it_has_ended(single: Database, database: Database) -> None:
    waiting = asyncio.create_task(single.fetchrow(LONG))
    while await database.fetchrow(RUNS, query=LONG) is None:
        pass
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await asyncio.wait_for(pid(single), 10) > 0


async def test_a_connection_that_died_while_it_was_free_is_not_lent(single: Database, database: Database) -> None:
    before = await pid(single)
    await database.fetchrow("SELECT pg_terminate_backend(:pid, 10000)", pid=before)
    while single._idle[0]._con is not None:  # until the driver notices
        await database.fetchrow("SELECT 1")
    assert await pid(single) != before


async def test_free_connections_go_back_to_the_driver_which_closes_idle_ones(single: Database) -> None:
    own = await pid(single)
    assert single._pool.get_idle_size() == 0
    single._release_idle()
    assert single._returned is not None
    await single._returned
    assert single._pool.get_idle_size() == 1
    assert await pid(single) == own


@pytest.fixture
async def silent() -> AsyncIterator[int]:
    """Return the port of a host that hangs: it accepts connections and sends nothing."""
    over = asyncio.Event()

    async def keep(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.close()

    server = await asyncio.start_server(keep, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    over.set()
    server.close()


@pytest.fixture
async def over_tcp(database_url: str) -> AsyncIterator[int]:
    """Return a port that is forwarded to the server."""
    url = make_url(database_url)

    async def passed_on(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while piece := await source.read(65_536):
            target.write(piece)
        target.close()

    async def relay(from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        if url.host:
            from_server, to_server = await asyncio.open_connection(url.host, url.port)
        else:
            from_server, to_server = await asyncio.open_unix_connection(f"{url.query['host']}/.s.PGSQL.5432")
        await asyncio.gather(passed_on(from_client, to_server), passed_on(from_server, to_client))

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


async def test_a_host_that_hangs_is_passed_over(
    silent: int, over_tcp: int, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "HOST_SECONDS", 0.5)
    ours = make_url(database_url)
    login = f"{ours.username}:{ours.password or ''}"
    url = f"postgresql://{login}@127.0.0.1:{silent},127.0.0.1:{over_tcp}/{ours.database}?sslmode=disable"
    connection = await driver.connect(url)
    assert await connection.fetchval("SELECT 1") == 1
    await connection.close()
    with pytest.raises(TimeoutError):
        await driver.connect(f"postgresql://postgres@127.0.0.1:{silent},127.0.0.1:{silent}/any")


async def test_unreachable_hosts_are_a_retryable_failure() -> None:
    absent = Database("postgresql://me@127.0.0.1:1,127.0.0.1:1/name", pool_size=1)
    with pytest.raises(StoreUnavailable):
        await absent.fetch("SELECT 1")
    await absent.close()


class Recording:
    """A placement that records each statement, and runs it as it is in a transaction."""

    settings: Mapping[str, str] = {"application_name": "placed"}

    def __init__(self) -> None:
        self.statements: list[str] = []
        self.closed = False

    def transaction_settings(self, settings: Mapping[str, str], tenant: str) -> Sequence[str]:
        return [tenant]

    async def run(self, on: Executor, method: str, sql: str, values: Mapping[str, object]) -> object:
        self.statements.append(sql)
        return await on.run_in_transaction(lambda tx: tx.send(method, sql, values))

    async def aclose(self) -> None:
        self.closed = True


async def test_a_placement_is_found_once_and_runs_every_statement(database_url: str) -> None:
    found, tenant = [], UUID(int=7)

    async def find(driver: object, database: Database) -> Recording:
        found.append(Recording())
        return found[0]

    placed = Database(database_url, pool_size=2, find_placement=find)
    where = "SELECT current_setting('application_name') AS name, current_setting('palimpsest.tenant') AS tenant"
    with acting_for(tenant):
        row = await placed.fetchrow(where)
        async with placed.transaction() as tx, placed.transaction() as other:
            await tx.execute("SELECT 1")
            await other.fetch("SELECT :n::int", n=2)
    assert row is not None and tuple(row.values()) == ("placed", str(tenant))
    assert len(found) == 1 and found[0].statements == [where, "SELECT 1", "SELECT :n::int"]
    await placed.close()
    assert found[0].closed


async def test_a_pool_looks_for_its_placement_until_it_is_known(database_url: str) -> None:
    asked = []

    async def find(driver: object, database: Database) -> None:
        asked.append(driver)
        if len(asked) == 1:
            raise ConnectionResetError

    one = Database(database_url, pool_size=1, find_placement=find)
    with pytest.raises(StoreUnavailable):
        await one.fetchrow(WHO)
    own = await pid(one)
    assert await pid(one) == own and len(asked) == 2
    await one.close()


async def queries_for(url: str, statement: str) -> list[str]:
    """Return all queries that a new connection sends for a statement."""
    connection = await driver.connect(url, connection_class=driver.TenantConnection)
    sent: list[str] = []
    with connection.query_logger(lambda logged: sent.append(logged.query)):
        assert await connection.fetchval(statement) == ["a"]
    await connection.close()
    return sent


async def test_a_process_asks_once_for_types_that_every_database_has(database_url: str, database: Database) -> None:
    """The number of a type of this database's own may be another type's elsewhere: it is asked for each time."""
    await database.execute("CREATE DOMAIN own AS text")
    for statement, asks in (("SELECT ARRAY['a']::name[]", False), ("SELECT ARRAY['a']::own[]", True)):
        await queries_for(database_url, statement)
        assert (len(await queries_for(database_url, statement)) > 1) == asks
