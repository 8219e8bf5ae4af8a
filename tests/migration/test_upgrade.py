"""An upgrade from the previous release by docs/operations/upgrades.md, with its processes, ours, and active agents."""

import asyncio
import importlib.util
import os
import re
import shlex
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import asyncpg
import httpx
import pytest

from app.core.plan.state.wording import RENDER_VERSION
from app.store import embedded
from app.store.dsn import for_asyncpg
from app.store.engine import Database
from app.store.migrate import revisions
from app.version import VERSION
from tests.acceptance.conftest import Command
from tests.support.queue import wait_until_idle
from tests.support.receiver import Receiver, receiving
from tests.support.releases import ROOT, Installed, install, is_here, releases
from tests.support.sse import Event, streaming, take
from tests.support.upgrading import Agent, Load, Site

pytestmark = [pytest.mark.long, pytest.mark.wing("stream")]

PAGE = ROOT / "docs" / "operations" / "upgrades.md"
KEY = "pal_an-administrators-key-for-the-upgrade"
HEADERS = {"Authorization": f"Bearer {KEY}"}
RELEASE = releases()[-1]
SECONDS_MAX = 240
OURS = Installed(ROOT, sys.executable)


def block(name: str) -> str:
    """Return the commands of the page under a name."""
    found = re.search(rf"<!-- walk:{name} -->\n *```sh\n(.*?)```\n *<!-- /walk:{name} -->", PAGE.read_text(), re.DOTALL)
    assert found, f"the page has no walk {name!r}"
    return found[1]


async def run_commands(name: str, folder: Path, database_url: str, server: str = "") -> str:
    """Run the page's commands in a folder with this version's program; return their output."""
    ours = {
        "PATH": f"{Path(sys.executable).parent}:{embedded.BINARIES}:{os.environ['PATH']}",
        "PALIMPSEST_DATABASE_URL": for_asyncpg(database_url),
        "PALIMPSEST_URL": server,
    }
    process = await asyncio.create_subprocess_exec(
        *("bash", "-euo", "pipefail", "-c", block(name)),
        env=os.environ | ours,
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, errors = await process.communicate()
    assert process.returncode == 0, (shlex.quote(name), errors.decode())
    return out.decode()


async def fetch(database_url: str, statement: str) -> Any:
    """Return the value that a statement selects, as the tables' owner."""
    connection = await asyncpg.connect(for_asyncpg(database_url))
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Return the previous release."""
    if not is_here(RELEASE):
        pytest.skip(f"the commit of {RELEASE.version} is not in this clone's history: git fetch --unshallow")
    return install(RELEASE, tmp_path_factory.mktemp("release"))


@pytest.fixture
def settings(url: str) -> dict[str, str]:
    return {"DATABASE_URL": url, "API_KEY": KEY, "WEBHOOK_PRIVATE_TARGETS": "true", "WORKER_HEARTBEAT_SECONDS": "1"}


@pytest.fixture
async def started() -> AsyncIterator[list[Command]]:
    """Return a list of started commands, which are killed at the end."""
    commands: list[Command] = []
    yield commands
    for command in commands:
        await command.kill()


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as found:
        yield found


async def old_site(old: Installed, settings: dict[str, str], started: list[Command]) -> tuple[str, Command, Command]:
    """Start the old release on a database of its own schema; return the URL, the API and the worker."""
    migrated = await old.start("migrate", **settings)
    assert await migrated.wait() == (0, [])
    assert await fetch(settings["DATABASE_URL"], "SELECT version_num FROM alembic_version") == RELEASE.schema
    return await start_release(old, settings, started)


async def start_release(
    program: Installed, settings: dict[str, str], started: list[Command]
) -> tuple[str, Command, Command]:
    """Start a program's API and worker; return the URL and both."""
    api, worker = await program.start("api", **settings), await program.start("worker", **settings)
    started += [api, worker]
    url = await api.url()
    await worker.expect_line("starting")
    await worker.expect_line("working")
    return url, api, worker


def client(url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, headers=HEADERS, timeout=60, verify=False)


def their_walk(old: Installed) -> ModuleType:
    """Load the old release's own walk through every operation of its API."""
    spec = importlib.util.spec_from_file_location("their_walk", old.folder / "tests" / "support" / "walk.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    module.SECONDS_MAX = SECONDS_MAX  # agents are active at the same time
    return module


class Reader:
    """A reader of a session's stream that resumes at another server when it ends."""

    def __init__(self, session: str) -> None:
        self.path = f"/v1/sessions/{session}/stream"
        self.events: list[Event] = []

    async def read(self, url: str) -> None:
        """Read until the server ends the stream."""
        last = self.events[-1].id if self.events else None
        async with streaming(url, self.path, last_id=last, headers=HEADERS, types="appended") as events:
            try:
                async for event in events:
                    self.events += [event] if event.kind == "appended" else []
            except httpx.RemoteProtocolError:
                return

    async def rest(self, url: str, head: int) -> list[int]:
        """Read up to the head; return all seqs read."""
        last = self.events[-1].id if self.events else None
        async with asyncio.timeout(SECONDS_MAX):
            async with streaming(url, self.path, last_id=last, headers=HEADERS, types="appended") as events:
                self.events += await take(events, head - len(self.events))
        return [event.data["seq"] for event in self.events]


async def summaries(http: httpx.AsyncClient, agent: Agent) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await http.get(f"{agent.path}/summaries", params={"limit": 500})).json()["items"]
    return found


async def render_versions(http: httpx.AsyncClient, agent: Agent) -> dict[str, int]:
    """Return the render version of each of an agent's calls, as recorded."""
    records = {call_id: (await http.get(f"{agent.path}/calls/{call_id}")).json() for call_id in agent.calls}
    return {call_id: record["render_version"] for call_id, record in records.items()}


async def assert_complete(http: httpx.AsyncClient, agent: Agent, newest: int | None = None) -> None:
    """Assert that the log has everything acknowledged, calls render again, and every event is accounted for.

    Calls of a render version above `newest`, the newest that the server knows, are refused.
    """
    items: list[dict[str, Any]] = []
    while len(items) < max(agent.acknowledged):
        after = items[-1]["seq"] if items else 0
        page = (await http.get(f"{agent.path}/events", params={"limit": 200, "after": after})).json()["items"]
        assert page, after
        items += page
    log = {item["seq"]: item["id"] for item in items}
    assert log == agent.acknowledged
    assert sorted(log) == list(range(1, len(log) + 1))
    versions = await render_versions(http, agent)
    for call_id, sha256 in agent.calls.items():
        again = await http.get(f"{agent.path}/calls/{call_id}/context")
        if newest is not None and versions[call_id] > newest:
            assert again.headers["content-type"] == "application/problem+json"
            problem = again.json()
            assert (again.status_code, problem["type"]) == (500, "/problems/not-reproducible"), again.text
            assert (problem["recorded_sha256"], problem["rendered_sha256"]) == (sha256, None)
            continue
        assert again.status_code == 200, again.text
        assert again.json()["sha256"] == sha256
    proof = (await http.get(f"{agent.path}/coverage")).json()
    assert proof["ok"], proof["faults"]


async def test_agents_keep_working_while_the_previous_release_is_replaced(
    old: Installed,
    settings: dict[str, str],
    started: list[Command],
    receiver: Receiver,
    tmp_path: Path,
) -> None:
    url = settings["DATABASE_URL"]
    before, old_api, old_worker = await old_site(old, settings, started)
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(client(before))
        assert (await http.get("/healthz")).json()["version"] == RELEASE.version
        receiver.statuses.extend([410] * 1_000)  # ends a delivery, which the walk requests again
        load = Load(Site([http]), agents=3)
        async with load.running():
            await load.wait_for_turns(2)
            reader = Reader("agent-0")
            reading = asyncio.create_task(reader.read(before))
            await run_commands("backup", tmp_path, url)
            usual = max(load.site.seconds)
            load.site.seconds.clear()
            assert f"palimpsest {VERSION}" in await run_commands("migrate", tmp_path, url)
            assert await fetch(url, "SELECT version_num FROM alembic_version") == revisions()[-1]
            await load.wait_for_turns(1)
            print(f"longest request: {usual:.3f} s before, {max(load.site.seconds):.3f} s while migrating")
            # Every operation of the old API, its worker's summaries and its webhooks run on the new schema.
            done = await their_walk(old).walk(http, receiver)
            assert {one.operation for one in done} >= {"/v1/sessions/{sid}/compactions", "/v1/webhooks/{name}"}
            last_of_old = {agent.name: len(agent.calls) for agent in load.agents}

            after, *_ = await start_release(OURS, settings, started)
            new = await stack.enter_async_context(client(after))
            load.site.servers.append(new)
            await load.wait_for_turns(2)
            load.site.servers.remove(http)
            await load.wait_for_turns(1)  # requests at the old server have completed
            for process in (old_api, old_worker):
                assert (await process.stop())[0] == 0
            await asyncio.wait_for(reading, SECONDS_MAX)
            out = await run_commands("check", tmp_path, url, after)
            assert f'"version":"{VERSION}"' in out
            assert "palimpsest_jobs_overdue_seconds" in out
            await load.wait_for_turns(2)
        database = Database(url, pool_size=1, role=None)
        try:
            await wait_until_idle(database)
        finally:
            await database.close()
        for agent in load.agents:
            assert len(agent.calls) > last_of_old[agent.name] > 0
            await assert_complete(new, agent)
            assert await summaries(new, agent)
        head = max(load.agents[0].acknowledged)
        assert await reader.rest(after, head) == list(range(1, head + 1))


async def test_downgrade_to_the_previous_release(
    old: Installed, settings: dict[str, str], started: list[Command], tmp_path: Path
) -> None:
    url = settings["DATABASE_URL"]
    before, *_ = await old_site(old, settings, started)
    async with client(before) as http:
        agent = Agent(Site([http]), "agent-0")
        await agent.begin()
        await agent.take_turn()
        await run_commands("migrate", tmp_path, url)
        refused = await old.start("api", **settings)
        status, [line] = await refused.wait()
        assert status != 0
        assert "newer" in line
        await agent.take_turn()
        made_by_old = set(agent.calls)
        (known,) = set((await render_versions(http, agent)).values())
    for process in started:
        assert (await process.stop())[0] == 0
    limit = f"{RELEASE.version} knows the versions 1 to {known}; this version records {RENDER_VERSION}."
    assert limit in " ".join(PAGE.read_text().split())
    after, api, worker = await start_release(OURS, settings, started)
    async with client(after) as http:
        agent.site.servers = [http]
        await agent.take_turn()
        versions = await render_versions(http, agent)
        made_by_ours = agent.calls.keys() - made_by_old
        assert {versions[call_id] for call_id in made_by_ours} == {RENDER_VERSION}
        await assert_complete(http, agent)
        session = {"messages": [{"role": "user", "content": "hello"}], "format": "openai", "model": "gpt-5"}
        for text in ("hello", "otherwise"):
            session["messages"] = [{"role": "user", "content": text}]
            assert (await http.post("/v1/sessions/listed/context", json=session)).status_code == 200
    for process in (api, worker):
        assert (await process.stop())[0] == 0
    assert block("back").split()[-1] == RELEASE.schema
    await run_commands("back", tmp_path, url)
    assert await fetch(url, "SELECT version_num FROM alembic_version") == RELEASE.schema
    again, *_ = await start_release(old, settings, started)
    async with client(again) as http:
        agent.site.servers = [http]
        await agent.take_turn()
        again_by_old = agent.calls.keys() - versions.keys()
        assert await render_versions(http, agent) == versions | dict.fromkeys(again_by_old, known)
        await assert_complete(http, agent, newest=known)
        assert len((await http.get("/v1/sessions")).json()["items"]) >= 2
