"""The steps of docs/operations/replica.md on real servers: audits on a replica that stops, lags and dies."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from app.runtime.settings import Settings
from app.store import dsn, engine, migrate
from app.store.engine import Database
from tests.acceptance.conftest import SECONDS_MAX
from tests.conftest import serving
from tests.support.acknowledged import Agent, patient_client
from tests.support.clusters import Page, clusters_folder, free_port, kill, make_cluster, postmaster, shell

pytestmark = [pytest.mark.slow, *(pytest.mark.wing(name) for name in ("audit", "compare", "ledger", "replica"))]

NO_CACHE = {"Cache-Control": "no-cache"}
NO_DELAY = "ALTER SYSTEM SET max_standby_streaming_delay = 0"
NO_FEEDBACK = "ALTER SYSTEM SET hot_standby_feedback = off"


class Site:
    """A primary and its replica, set up by the page's steps."""

    def __init__(self, folder: Path) -> None:
        self.primary, self.replica = folder / "primary", folder / "replica"
        self.ports = {"primary": free_port(), "replica": free_port()}
        self.page = Page(
            "replica.md",
            {"PRIMARY_HOST": "127.0.0.1", "PRIMARY_PORT": self.ports["primary"], "PRIMARY_DATA": self.primary}
            | {"REPLICA_HOST": "127.0.0.1", "REPLICA_PORT": self.ports["replica"], "REPLICA_DATA": self.replica}
            | {"NETWORK": "127.0.0.1/32", "LOGIN": "postgres", "PGPASSWORD": "a-password"},
        )
        self.url = self.read_url = ""

    async def set_up(self) -> None:
        """Run the page's steps up to the address, and migrate the database."""
        await make_cluster(self.primary, self.ports["primary"])
        await self.ask("primary", "CREATE DATABASE palimpsest")
        await self.page.run("primary")
        await self.page.run("replica")
        name = "export PALIMPSEST_READ_DATABASE_URL="
        self.read_url = dsn.normalize((await self.page.run("address", (name, "echo "), as_current_user=True)).strip())
        self.url = self.read_url.replace(str(self.ports["replica"]), str(self.ports["primary"]))
        await migrate.upgrade(self.url)

    async def start_replica(self) -> None:
        await shell(
            f"pg_ctl -D {self.replica} -o '-p {self.ports['replica']}' -l {self.replica}/log -w start >/dev/null"
        )

    async def ask(self, which: str, sql: str, database: str = "postgres") -> str:
        port = self.ports[which]
        return (await shell(f'psql -X -h 127.0.0.1 -p {port} -U postgres -d {database} -Atc "{sql}"')).strip()

    async def replayed(self) -> None:
        """Wait until the replica has replayed everything that the primary has now."""
        position = await self.ask("primary", "SELECT pg_current_wal_flush_lsn()")
        async with asyncio.timeout(SECONDS_MAX):
            while await self.ask("replica", f"SELECT pg_last_wal_replay_lsn() >= '{position}'") != "t":
                pass

    @asynccontextmanager
    async def server(self, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
        """Run a server that uses the replica; return a client of it."""
        async with AsyncExitStack() as stack:
            url = await stack.enter_async_context(
                serving(Settings(read_database_url=self.read_url, **settings), self.url)
            )
            yield await stack.enter_async_context(patient_client(url))


@pytest.fixture
def clusters() -> Iterator[Path]:
    with clusters_folder() as folder:
        yield folder


@pytest.fixture
async def site(clusters: Path) -> AsyncIterator[Site]:
    found = Site(clusters)
    await found.set_up()
    yield found


async def wait_for_state(http: httpx.AsyncClient, state: str) -> None:
    """Wait until the server reports this state of the replica."""
    async with asyncio.timeout(SECONDS_MAX):
        while (answer := (await http.get("/readyz")).json()) != {"status": "ready", "replica": state}:
            assert answer["status"] == "ready"


async def reads_by_server(http: httpx.AsyncClient) -> dict[str, float]:
    """Return the number of reads answered so far, by server."""
    text, name = (await http.get("/metrics")).text, 'palimpsest_late_reads_total{answered_by="'
    lines = (line.removeprefix(name).split('"} ') for line in text.splitlines() if line.startswith(name))
    return {by: float(number) for by, number in lines}


async def calls(http: httpx.AsyncClient, headers: dict[str, str] | None = None) -> tuple[set[str], str | None]:
    """Return the ids of a session's calls, and the response's `Age`."""
    answer = await http.get("/v1/sessions/s/calls", headers=headers)
    assert answer.status_code == 200, answer.text
    return {item["call_id"] for item in answer.json()["items"]}, answer.headers.get("age")


def paths(first: str, second: str) -> list[str]:
    """Return the path of every operation that a replica may answer."""
    here = "/v1/sessions/s"
    return [
        "/v1/audit/calls",
        "/v1/audit/ledger?since=2020-01-01T00:00:00Z",
        *(f"{here}/calls", f"{here}/ledger", f"{here}/events/1/history"),
        *(f"{here}/calls/{first}", f"{here}/calls/{first}/context", f"{here}/calls/{first}/diff/{second}"),
    ]


@pytest.mark.wing("telemetry")
async def test_a_replica_answers_audits_and_the_primary_what_it_cannot(site: Site) -> None:
    async with site.server() as http:
        agent = Agent(http, "s")
        await agent.begin()
        await agent.take_turns(2)
        first, second = agent.calls
        await site.replayed()
        await wait_for_state(http, "ready")
        before = await reads_by_server(http)
        for path in paths(first, second):
            theirs, ours = await http.get(path), await http.get(path, headers=NO_CACHE)
            assert (theirs.status_code, ours.status_code) == (200, 200), theirs.text
            assert 0 < int(theirs.headers["age"]) <= 30 and "age" not in ours.headers
            assert theirs.json() == ours.json()
        after = await reads_by_server(http)
        assert after["replica"] - before.get("replica", 0) == len(paths(first, second))
        assert after["primary_asked"] - before.get("primary_asked", 0) == len(paths(first, second))

        await site.ask("replica", "SELECT pg_wal_replay_pause()")  # it replays nothing from here on
        await agent.take_turn()
        third = next(call for call in agent.calls if call not in (first, second))
        late, age = await calls(http)
        assert (late, age is not None) == ({first, second}, True)
        assert await calls(http, NO_CACHE) == ({first, second, third}, None)
        for path in (f"/v1/sessions/s/calls/{third}", f"/v1/sessions/s/calls/{first}/diff/{third}"):
            one = await http.get(path)
            assert (one.status_code, one.headers.get("age")) == (200, None)
        assert (await reads_by_server(http))["primary_missing"] == after.get("primary_missing", 0) + 2
        missing = "00000000-0000-7000-8000-000000000000"
        assert (await http.get(f"/v1/sessions/s/calls/{missing}")).status_code == 404
        await agent.append()  # agents need no replica
        await site.ask("replica", "SELECT pg_wal_replay_resume()")
        await site.replayed()
        late, age = await calls(http)  # the miss was not cached
        assert (late, age is not None) == ({first, second, third}, True)
        again = await http.get(f"/v1/sessions/s/calls/{third}/context")
        assert again.json()["sha256"] == agent.calls[third] and "age" in again.headers
    assert site.page.left == set()


@pytest.mark.wing("telemetry")
async def test_a_lagging_or_dead_replica_is_not_used(site: Site) -> None:
    async with site.server(read_behind_seconds_max=3.0) as http:
        agent = Agent(http, "s")
        await agent.begin()
        await agent.take_turn()
        await wait_for_state(http, "ready")
        await site.ask("replica", "SELECT pg_wal_replay_pause()")
        await agent.take_turn()
        await wait_for_state(http, "behind")
        assert await calls(http) == (set(agent.calls), None)
        await site.ask("replica", "SELECT pg_wal_replay_resume()")
        await wait_for_state(http, "ready")

        stopped = postmaster(site.replica)
        assert stopped is not None
        processes = [stopped, *stopped.children(recursive=True)]
        for process in processes:  # a machine that no longer responds
            process.send_signal(signal.SIGSTOP)
        assert await calls(http) == (set(agent.calls), None)
        await wait_for_state(http, "away")
        for process in processes:
            process.send_signal(signal.SIGCONT)
        await wait_for_state(http, "ready")

        await asyncio.to_thread(kill, site.replica)
        assert await calls(http) == (set(agent.calls), None)
        await wait_for_state(http, "away")
        await agent.take_turn()
        assert await calls(http) == (set(agent.calls), None)
        assert (await reads_by_server(http))["primary_away"] >= 4
        await site.start_replica()
        await wait_for_state(http, "ready")
        await site.replayed()
        answer, age = await calls(http)
        assert (answer, age is not None) == (set(agent.calls), True)

        await shell(f"pg_ctl -D {site.replica} -w promote >/dev/null")
        await wait_for_state(http, "other")
        assert await calls(http) == (set(agent.calls), None)


async def test_a_statement_that_replay_cancels_is_tried_again(site: Site) -> None:
    await site.ask("replica", NO_DELAY)
    await site.ask("replica", NO_FEEDBACK)
    await site.ask("replica", "SELECT pg_reload_conf()")
    await site.ask("primary", "CREATE TABLE held (n int)", "palimpsest")
    await site.ask("primary", "INSERT INTO held VALUES (1); GRANT SELECT ON held TO palimpsest_app", "palimpsest")
    await site.replayed()
    database = Database(site.read_url, pool_size=1)
    try:
        # It sleeps if its snapshot has the row.
        reading = asyncio.create_task(
            database.fetchrow(
                "SELECT count(*) AS rows, pg_sleep(CASE WHEN count(*) > 0 THEN 3600 ELSE 0 END) FROM held"
            )
        )
        async with asyncio.timeout(SECONDS_MAX):
            asleep = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
            while await site.ask("replica", asleep) != "1":
                pass
        await site.ask("primary", "DELETE FROM held", "palimpsest")
        await site.ask("primary", "VACUUM held", "palimpsest")
        async with asyncio.timeout(SECONDS_MAX):
            row = await reading
        assert row is not None and row["rows"] == 0
        assert (site.replica / "log").read_text().count("canceling statement due to conflict with recovery") == 1
    finally:
        await database.close()


@pytest.mark.wing("telemetry")
async def test_a_timeout_on_the_replica_is_not_retried_on_the_primary(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "COMMAND_SECONDS", 2.0)
    async with site.server() as http:
        agent = Agent(http, "s")
        await agent.begin()
        await agent.take_turn()
        await site.replayed()
        owner = await asyncpg.connect(dsn.for_asyncpg(site.url))
        lock = owner.transaction()
        await lock.start()
        await owner.execute("LOCK TABLE model_calls IN ACCESS EXCLUSIVE MODE")
        held = "SELECT count(*) FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND locktype = 'relation'"
        async with asyncio.timeout(SECONDS_MAX):
            while int(await site.ask("replica", held)) == 0:
                pass
        await site.ask("replica", "SELECT pg_wal_replay_pause()")  # it keeps the lock that the primary releases
        await lock.rollback()
        await owner.close()
        await wait_for_state(http, "ready")
        answer = await http.get("/v1/sessions/s/calls")
        assert (answer.status_code, answer.json()["type"]) == (503, "/problems/store-unavailable")
        assert (await reads_by_server(http))["refused"] >= 1
        assert await calls(http, NO_CACHE) == (set(agent.calls), None)
