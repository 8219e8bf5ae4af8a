"""The worker: its schedules, several workers at the same time, and a database that becomes unavailable."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar
from uuid import NAMESPACE_URL, uuid5

import asyncpg
import httpx
import pytest
from pgqueuer import PgQueuer
from pgqueuer.adapters.persistence.qb import QueryBuilderEnvironment
from pgqueuer.domain.settings import DBSettings
from pgqueuer.models import Job
from structlog.testing import capture_logs

from app import worker
from app.store import deletion, dsn
from app.store.engine import Database
from tests.support.queue import worker_queue

SECONDS_MAX = 60
QUEUE_SQL = Path(__file__).parents[2] / "migrations" / "sql" / "pgqueuer.sql"
TENANT = uuid5(NAMESPACE_URL, "palimpsest:default")
EVENT = {"type": "user.message", "content": "hello"}


async def append(client: httpx.AsyncClient, key: str) -> httpx.Response:
    return await client.post("/v1/sessions/s/events", json={"events": [EVENT]}, headers={"Idempotency-Key": key})


async def stored_keys(database: Database) -> list[str]:
    return [row["key"] for row in await database.fetch("SELECT key FROM appends ORDER BY key")]


HOUSEKEEPING = [
    "purge_expired_calls",
    "purge_given_up_jobs",
    "purge_idempotency_records",
    "purge_job_log",
    "sweep_layers",
]
"""Schedules that every worker announces."""


class Counted:
    """A group of one job that records its payloads."""

    payloads: ClassVar[list[bytes | None]] = []

    def __init__(self, _: Database) -> None:
        self.payloads.clear()

    async def aclose(self) -> None: ...

    def register(self, queue: PgQueuer) -> None:
        @queue.entrypoint("index")
        async def index(job: Job) -> None:
            self.payloads.append(job.payload)


async def age(database: Database, keys: list[str], interval: str) -> None:
    await database.execute(
        "UPDATE appends SET created_at = now() - :age::text::interval WHERE key = ANY (:keys)", keys=keys, age=interval
    )


async def announced_schedules(database: Database) -> list[str]:
    """Return the schedules that workers have announced, as soon as the housekeeping is among them."""
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            rows = await database.fetch("SELECT entrypoint FROM pgqueuer_schedules ORDER BY entrypoint")
            found = [row["entrypoint"] for row in rows]
            if set(HOUSEKEEPING) <= set(found):
                return found


def test_the_queue_has_the_schema_that_its_library_wants() -> None:
    """If a new release of pgqueuer fails this test, its changes need a migration of ours."""
    wanted = QueryBuilderEnvironment(DBSettings()).build_install_query().split("\n", 1)[1]
    assert wanted.strip() in QUEUE_SQL.read_text(encoding="utf-8")


async def test_idempotency_keys_are_forgotten_after_a_day(client: httpx.AsyncClient, database: Database) -> None:
    for key in ("old", "older", "young"):
        assert (await append(client, key)).status_code == 201
    await age(database, ["old", "older"], "25 hours")
    await age(database, ["young"], "23 hours")
    assert await deletion.purge_idempotency_keys(database) == 2
    assert await stored_keys(database) == ["young"]
    assert (await append(client, "young")).status_code == 200
    assert (await append(client, "old")).status_code == 201


async def test_a_purge_larger_than_one_statement_by_two_workers_at_once(
    client: httpx.AsyncClient, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletion, "ROWS_PER_STATEMENT", 3)
    assert (await append(client, "first")).status_code == 201
    await database.execute(
        "INSERT INTO appends (session_id, key, tenant_id, request_sha256, answer, created_at) "
        "SELECT session_id, key || n, tenant_id, request_sha256, answer, now() - interval '2 days' "
        "FROM appends, generate_series(1, 20) AS n"
    )
    purged = await asyncio.gather(deletion.purge_idempotency_keys(database), deletion.purge_idempotency_keys(database))
    assert sum(purged) == 20
    assert await stored_keys(database) == ["first"]


async def test_a_finished_job_leaves_the_queue_immediately_and_without_polling(
    database_url: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "FLUSH_TIMEOUT", timedelta(hours=5))
    monkeypatch.setattr(worker, "DEQUEUE_TIMEOUT", timedelta(hours=1))
    waits: list[float | None] = []
    wait_for = asyncio.wait_for

    async def counted(awaitable: Any, timeout: float | None) -> Any:  # noqa: ASYNC109 - as asyncio names it
        waits.append(timeout)
        return await wait_for(awaitable, timeout)

    monkeypatch.setattr(asyncio, "wait_for", counted)
    stop = asyncio.Event()
    async with asyncio.timeout(SECONDS_MAX), worker_queue(database_url) as idle, asyncio.TaskGroup() as running:
        running.create_task(worker.run(database_url, stop, worker.Work(jobs=[Counted])))
        await announced_schedules(database)
        for number in range(3):
            await database.execute(
                "INSERT INTO pgqueuer (priority, entrypoint, payload, status) VALUES (0, 'index', :payload, 'queued')",
                payload=str(number).encode(),
            )
            await idle()
        stop.set()
    assert Counted.payloads == [b"0", b"1", b"2"]
    assert any(timeout > 4 * 3_600 for timeout in waits if timeout is not None)  # the buffer of finished jobs


async def test_workers_side_by_side_share_one_schedule_and_stop(database_url: str, database: Database) -> None:
    stop = asyncio.Event()
    workers = [asyncio.create_task(worker.run(database_url, stop)) for _ in range(3)]
    assert await announced_schedules(database) == HOUSEKEEPING
    stop.set()
    async with asyncio.timeout(SECONDS_MAX):
        await asyncio.gather(*workers)


async def test_a_due_schedule_runs_once(
    client: httpx.AsyncClient, database_url: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[int] = []
    forgets: list[int] = []
    purged, forgotten = asyncio.Event(), asyncio.Event()

    async def forget(pool: Database) -> int:
        forgets.append(await deletion.purge_calls(pool))
        forgotten.set()
        return forgets[-1]

    async def purge(pool: Database) -> int:
        runs.append(await deletion.purge_idempotency_keys(pool))
        purged.set()
        return runs[-1]

    assert (await append(client, "old")).status_code == 201
    await age(database, ["old"], "25 hours")
    monkeypatch.setattr(worker, "purge_idempotency_keys", purge)
    monkeypatch.setattr(worker, "purge_calls", forget)
    stop = asyncio.Event()
    first = asyncio.create_task(worker.run(database_url, stop))
    await announced_schedules(database)
    stop.set()
    await first
    await database.execute("UPDATE pgqueuer_schedules SET next_run = now() - interval '1 second'")
    stop = asyncio.Event()
    workers = [asyncio.create_task(worker.run(database_url, stop)) for _ in range(2)]
    async with asyncio.timeout(SECONDS_MAX):
        await purged.wait()
        await forgotten.wait()
        stop.set()
        await asyncio.gather(*workers)
    assert (runs, forgets) == ([1], [0])
    assert await stored_keys(database) == []


async def test_a_worker_that_loses_its_connection_comes_back(
    postgres: str, database_url: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "RECONNECT_SECONDS", 0.01)
    stop = asyncio.Event()
    working = asyncio.create_task(worker.run(database_url, stop))
    await announced_schedules(database)
    await database.execute("DELETE FROM pgqueuer_schedules")
    admin = await asyncpg.connect(dsn.for_asyncpg(postgres))
    await admin.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1 AND application_name = $2",
        database_url.split("?")[0].rsplit("/", 1)[1],
        worker.APPLICATION_NAME,
    )
    await admin.close()
    assert await announced_schedules(database) == HOUSEKEEPING
    stop.set()
    async with asyncio.timeout(SECONDS_MAX):
        await working


async def test_a_database_that_cannot_be_reached_is_not_reported_as_recovered(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts, stop = 0, asyncio.Event()

    async def connect(*_: Any, **__: Any) -> Any:
        nonlocal attempts
        attempts += 1
        if attempts > 1:  # longer than a recovered connection lasts
            await asyncio.sleep(0.1)
        if attempts == 4:
            stop.set()
        raise ConnectionRefusedError("nobody is there")

    monkeypatch.setattr(worker, "connect", connect)
    monkeypatch.setattr(worker, "RECONNECT_SECONDS", 0.01)
    monkeypatch.setattr(worker, "STEADY_SECONDS", 0.02)
    with capture_logs() as lines:
        async with asyncio.timeout(SECONDS_MAX):
            await worker.run(database_url, stop)
    assert len(lines) == 1, lines


async def test_an_append_does_not_notify_if_a_job_is_already_queued(
    client: httpx.AsyncClient, database: Database, database_url: str
) -> None:
    """Only one notifying transaction at a time can commit in the whole server."""
    heard: asyncio.Queue[str] = asyncio.Queue()
    connection = await asyncpg.connect(dsn.for_asyncpg(database_url))
    await connection.add_listener("ch_pgqueuer", lambda *said: heard.put_nowait(said[-1]))
    policy = {"window_tokens": 12_000, "reserve_tokens": 0}
    assert (await client.put("/v1/sessions/s", json={"policy": policy})).status_code == 201
    notifications = []
    for _ in range(4):
        said = [{"type": kind, "content": "word " * 4_000} for kind in ("user.message", "assistant.message")]
        answer = await client.post("/v1/sessions/s/events", json={"events": said})
        assert answer.status_code == 201, answer.text
        await database.execute("SELECT pg_notify('ch_pgqueuer', 'so far')")
        async with asyncio.timeout(SECONDS_MAX):
            notifications.append(0)
            while await heard.get() != "so far":
                notifications[-1] += 1
    await connection.close()
    rows = await database.fetch("SELECT FROM pgqueuer WHERE entrypoint = 'compact'")
    assert (len(rows), sorted(notifications)) == (1, [0, 0, 0, 1])


async def test_the_queues_log_of_its_jobs_is_kept_for_a_day(database: Database, application: Database) -> None:
    log = "INSERT INTO pgqueuer_log (created, job_id, priority, status, entrypoint)"
    of = "SELECT now() - :age::text::interval, n, 0, 'successful', 'compact' FROM generate_series(1, :rows::int) n"
    for age, rows in (("23 hours", 3), ("25 hours", deletion.ROWS_PER_STATEMENT + 5)):
        await database.execute(f"{log} {of}", age=age, rows=rows)
    assert await deletion.purge_job_log(application) == deletion.ROWS_PER_STATEMENT + 5
    assert await deletion.purge_job_log(application) == 0
    [left] = await database.fetch("SELECT count(*) AS rows FROM pgqueuer_log")
    assert left["rows"] == 3
