"""The server as a process: it starts from nothing, refuses in one line, stops cleanly, and survives SIGKILL."""

import asyncio
import json
import signal
import socket
from collections.abc import Iterator

import httpx
import pytest

from app.runtime.settings import Settings
from app.store.engine import Database
from tests.acceptance.conftest import SECONDS_MAX, Commands
from tests.support.clusters import free_port
from tests.support.databases import unmigrated

EVENT = {"type": "user.message", "content": "hello"}
LATER_REVISION = "ffff"
NOBODY = "postgresql://someone:secret@127.0.0.1:1/nothing"


@pytest.fixture
def taken_port() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield str(listener.getsockname()[1])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_serves_from_an_empty_folder_and_stops_when_asked(commands: Commands, number: signal.Signals) -> None:
    server = await (commands.start_fresh if number == signal.SIGTERM else commands.start)("serve")
    async with httpx.AsyncClient(base_url=await server.url(), timeout=30) as http:
        assert (await http.get("/healthz")).json()["status"] == "ok"
        assert (await http.get("/readyz")).status_code == 200
        assert (await http.post("/v1/sessions/s/events", json={"events": [EVENT]})).status_code == 201
    assert commands.postmaster() is not None
    server.process.send_signal(number)
    assert await server.wait() == (0, [])
    assert commands.postmaster() is None


async def test_the_start_names_the_data_folder(commands: Commands) -> None:
    server = await commands.start("serve")
    await server.expect_line("starting")
    await server.expect_line(f"data in {commands.folder} (PALIMPSEST_DATA_DIR)")
    assert (await server.line()).startswith("palimpsest: serving on ")
    assert await server.stop() == (0, [])


async def test_config_prints_the_settings_of_a_server_with_these_flags(commands: Commands) -> None:
    columns = await commands.start("config", "--port", "99", LOG_LEVEL="error")
    rows = [(await columns.line()).split() for _ in Settings.model_fields]
    assert await columns.wait() == (0, [])
    assert ["PALIMPSEST_PORT", "99", "flag"] in rows
    assert ["PALIMPSEST_LOG_LEVEL", "error", "environment"] in rows
    assert ["PALIMPSEST_HOST", "127.0.0.1", "default"] in rows
    typed = await commands.start_fresh("config", "--json", "--port", "99")
    found = json.loads(await typed.line())
    assert await typed.wait() == (0, [])
    assert found["PALIMPSEST_PORT"] == {"value": 99, "origin": "flag"}
    assert "PALIMPSEST_PORT " in await commands.refusal("config", PORT="seventy")


@pytest.mark.slow
async def test_its_postgres_is_brought_back_when_it_was_killed(commands: Commands) -> None:
    server = await commands.start("serve")
    async with httpx.AsyncClient(base_url=await server.url(), timeout=30) as http:
        assert (await http.post("/v1/sessions/s/events", json={"events": [EVENT]})).status_code == 201
        postmaster = commands.postmaster()
        assert postmaster is not None
        postmaster.kill()
        postmaster.wait()
        async with asyncio.timeout(SECONDS_MAX):
            while (answer := await http.post("/v1/sessions/s/events", json={"events": [EVENT]})).status_code != 201:
                assert answer.status_code == 503, answer.text
        head = answer.json()["head"]
        events = (await http.get("/v1/sessions/s/events")).json()["items"]
        assert [event["seq"] for event in events] == list(range(1, head + 1))
        assert (await http.post("/v1/sessions/s/context", json={})).status_code == 200
    status, _ = await server.stop()
    assert status == 0
    assert commands.postmaster() is None


async def test_a_request_in_flight_finishes(commands: Commands) -> None:
    server = await commands.start("serve")
    address = httpx.URL(await server.url())
    body = b'{"events":[{"type":"user.message","content":"hello"}]}'
    reader, writer = await asyncio.open_connection(address.host, address.port)
    fields = f"Host: localhost\r\nContent-Length: {len(body)}\r\nExpect: 100-continue"
    head = f"POST /v1/sessions/s/events HTTP/1.1\r\n{fields}\r\n\r\n"
    writer.write(head.encode())
    assert b"100 Continue" in await reader.readline()  # the server has begun to read the body
    server.process.terminate()
    await server.expect_line("stopping")
    writer.write(body)
    answer = await reader.read()
    assert b" 201 " in answer.splitlines()[1]
    writer.close()
    assert await server.wait() == (0, [])
    assert commands.postmaster() is None


async def test_a_signal_while_starting_leaves_nothing_behind(commands: Commands) -> None:
    server = await commands.start("serve")
    await server.expect_line("starting")
    server.process.terminate()
    assert await server.wait() == (0, [])
    assert commands.postmaster() is None


async def test_a_second_server_on_the_folder_is_refused(commands: Commands) -> None:
    first = await commands.start("serve")
    url = await first.url()
    assert str(commands.folder) in await commands.refusal("serve")
    async with httpx.AsyncClient(base_url=url) as http:
        assert (await http.get("/readyz")).status_code == 200
    assert (await first.stop())[0] == 0


async def test_a_port_in_use_is_refused_before_anything_starts(commands: Commands, taken_port: str) -> None:
    assert "in use" in await commands.refusal("serve", PORT=taken_port)
    assert not commands.folder.exists()


async def test_an_unreachable_database_is_one_line_of_a_command_that_ends(commands: Commands) -> None:
    refusal = await commands.refusal("migrate", DATABASE_URL=NOBODY)
    assert "the database cannot be used" in refusal
    assert "secret" not in refusal


@pytest.mark.parametrize("command", ["serve", "api", "worker"])
async def test_an_unreachable_database_is_waited_for(commands: Commands, command: str) -> None:
    port = str(free_port())
    process = await commands.start(command, DATABASE_URL=NOBODY, PORT=port)
    await process.expect_line("starting")
    await process.expect_line("waiting for the database")
    if command != "worker":
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as http:
            assert (await http.get("/healthz")).json()["status"] == "ok"
            for asked in (
                await http.get("/readyz"),
                await http.post("/v1/sessions/s/events", json={"events": [EVENT]}),
            ):
                assert (asked.status_code, asked.headers["retry-after"]) == (503, "1")
                assert asked.json()["type"] == "/problems/store-unavailable"
                assert "waiting for its database" in asked.json()["detail"]
    status, errors = await process.stop()
    assert status == 0
    assert len(errors) == 1 and "the database is unreachable; retrying" in errors[0], errors
    assert "Connect call failed" in errors[0] and "secret" not in errors[0]


@pytest.mark.parametrize("command", ["serve", "api", "worker", "migrate"])
async def test_a_database_newer_than_the_code_is_refused(
    commands: Commands, database_url: str, database: Database, command: str
) -> None:
    await database.execute("UPDATE alembic_version SET version_num = :revision", revision=LATER_REVISION)
    assert "newer" in await commands.refusal(command, DATABASE_URL=database_url)


@pytest.mark.parametrize("command", ["api", "worker"])
async def test_an_unmigrated_database_names_the_command(commands: Commands, postgres: str, command: str) -> None:
    async with unmigrated(postgres) as url:
        assert "palimpsest migrate" in await commands.refusal(command, DATABASE_URL=url)


async def test_all_interfaces_without_a_key_are_refused(commands: Commands, database_url: str) -> None:
    refusal = await commands.refusal("api", HOST="0.0.0.0", DATABASE_URL=database_url)
    assert "without a key" in refusal


@pytest.mark.parametrize(
    ("variable", "value"),
    [("PORT", "seventy"), ("DATABASE_URL", "mysql://here"), ("LOG_LEVEL", "chatty"), ("API_KEY", "short")],
)
async def test_a_bad_setting_is_named(commands: Commands, variable: str, value: str) -> None:
    refusal = await commands.refusal("serve", **{variable: value})
    assert refusal.startswith(f"palimpsest: PALIMPSEST_{variable} ")


async def test_a_folder_that_cannot_be_made_is_named(commands: Commands) -> None:
    commands.folder.write_text("a file")
    assert str(commands.folder) in await commands.refusal("serve")


@pytest.mark.slow
async def test_after_kill_of_everything_the_next_start_recovers(commands: Commands) -> None:
    server = await commands.start("serve")
    async with httpx.AsyncClient(base_url=await server.url(), timeout=30) as http:
        answer = await http.post("/v1/sessions/s/events", json={"events": [EVENT] * 3})
    assert answer.status_code == 201
    await commands.kill_all()
    again = await commands.start("serve")
    async with httpx.AsyncClient(base_url=await again.url(), timeout=30) as http:
        items = (await http.get("/v1/sessions/s/events")).json()["items"]
    assert [item["seq"] for item in items] == [1, 2, 3]
    assert await again.stop() == (0, [])


@pytest.mark.slow
async def test_after_kill_of_the_server_its_postgres_is_taken_over(commands: Commands) -> None:
    server = await commands.start("serve")
    async with httpx.AsyncClient(base_url=await server.url(), timeout=30) as http:
        await http.post("/v1/sessions/s/events", json={"events": [EVENT]})
    server.process.kill()
    await server.wait()
    assert commands.postmaster() is not None
    again = await commands.start("serve")
    async with httpx.AsyncClient(base_url=await again.url(), timeout=30) as http:
        assert (await http.get("/v1/sessions/s")).json()["head"] == 1
    assert await again.stop() == (0, [])
    assert commands.postmaster() is None


async def test_api_and_workers_side_by_side_on_a_database_of_ones_own(commands: Commands, database_url: str) -> None:
    api = await commands.start_fresh("api", DATABASE_URL=database_url)
    starts = (commands.start_fresh, commands.start)
    workers = [await start("worker", DATABASE_URL=database_url) for start in starts]
    async with httpx.AsyncClient(base_url=await api.url(), timeout=30) as http:
        assert (await http.get("/readyz")).status_code == 200
    for worker in workers:
        await worker.expect_line("starting")
        await worker.expect_line("working")
    for process in (*workers, api):
        assert await process.stop() == (0, [])


async def test_a_worker_is_healthy_while_its_database_knows_it(commands: Commands, database_url: str) -> None:
    async def healthy(wanted: bool) -> None:
        async with asyncio.timeout(SECONDS_MAX):
            while True:
                asking = await commands.start("worker", "--healthy", DATABASE_URL=database_url)
                status, errors = await asking.wait()
                if status == 0 and wanted:
                    return
                assert errors == (
                    [] if status == 0 else ["palimpsest: no worker of this machine is connected to the database"]
                )
                if not wanted and status == 1:
                    return

    await healthy(False)
    worker = await commands.start("worker", DATABASE_URL=database_url)
    await healthy(True)
    assert await worker.stop() == (0, [])
    await healthy(False)


async def test_a_worker_is_not_healthy_without_its_database(commands: Commands) -> None:
    nowhere = "postgresql://someone:secret@127.0.0.1:1/nothing"
    refusal = await commands.refusal("worker", "--healthy", DATABASE_URL=nowhere)
    assert "the database cannot be used" in refusal
    assert "secret" not in refusal


async def test_listing_keys_makes_no_database(commands: Commands) -> None:
    key_id = "019373a1-0000-7000-8000-000000000000"
    for arguments in (("keys", "list"), ("keys", "revoke", key_id)):
        assert str(commands.folder) in await commands.refusal(*arguments)
    assert not commands.folder.exists()


async def test_keys_of_a_running_server(commands: Commands) -> None:
    server = await commands.start("serve")
    url = await server.url()
    creating = await commands.start_fresh("keys", "create", "laptop")
    secret = await creating.line()
    status, (about,) = await creating.wait()
    assert status == 0
    key_id = about.split()[1]
    headers = {"Authorization": f"Bearer {secret}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=30) as http:
        assert (await http.get("/v1/sessions")).status_code == 200
    listing = await commands.start("keys", "list")
    line = await listing.line()
    assert line.startswith(key_id)
    assert secret not in line
    assert line.endswith("works  all sessions  never used") or "  works  all sessions  used 20" in line
    until = ("--expires", "2999-01-31", "--session-prefix", "user-42:")
    assert (await (await commands.start("keys", "create", "bound", *until)).wait())[0] == 0
    listing = await commands.start("keys", "list")
    await listing.line()
    line = await listing.line()
    assert line.endswith("ingest,read  works until 2999-01-31T00:00Z  sessions user-42:…  never used")
    assert "not a valid time" in await commands.refusal("keys", "create", "late", "--expires", "soon")
    assert (await (await commands.start("keys", "revoke", key_id)).wait())[0] == 0
    assert "no key that can be revoked" in await commands.refusal("keys", "revoke", key_id)
    assert (await server.stop())[0] == 0


async def test_migrate_makes_a_database_usable(commands: Commands, postgres: str) -> None:
    async with unmigrated(postgres) as url:
        for start in (commands.start_fresh, commands.start):
            assert await (await start("migrate", DATABASE_URL=url)).wait() == (0, [])
        api = await commands.start("api", DATABASE_URL=url)
        await api.url()
        assert await api.stop() == (0, [])
