"""Agents that `palimpsest wrap` starts, as processes: a shared server, its end, signals, and files that remain."""

import asyncio
import os
import signal
import stat
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from palimpsest_tools.server import free_port
from tests.acceptance.conftest import SECONDS_MAX
from tests.support.folders import data_folder
from tests.support.provider import Provider, ProviderReply, serving_provider

pytestmark = pytest.mark.slow
AGENT = """#!{python}
import json, os, signal, sys, urllib.request
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
body = json.dumps({{"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": [
    {{"role": "user", "content": [{{"type": "text", "text": text}}]}} for text in sys.argv[1:2]]}}).encode()
headers = {{"content-type": "application/json", "x-api-key": "k", "x-claude-code-session-id": "from-" + sys.argv[1]}}
url = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages"
with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as answer:
    print(answer.headers["x-palimpsest-mode"], json.load(answer)["content"][0]["text"], flush=True)
for line in sys.stdin:
    sys.exit(int(line))
"""
"""A stand-in for Claude Code: it makes one call, and ends with the status on its standard input, or by a signal."""


@dataclass(frozen=True)
class Desk:
    """A user's machine: an agent on the path, a data folder and a port; and the provider of the agent."""

    provider: Provider
    environment: Mapping[str, str]
    url: str

    async def start(self, *arguments: str, **variables: str) -> asyncio.subprocess.Process:
        """Run `palimpsest` with arguments."""
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "app.cli", *arguments),
            env={**self.environment, **variables},
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
        )

    async def serves(self) -> bool:
        """Return whether a server answers."""
        async with httpx.AsyncClient(base_url=self.url) as http:
            try:
                return (await http.get("/healthz")).status_code == 200
            except httpx.ConnectError:
                return False


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    program = tmp_path / "bin" / "claude"
    program.parent.mkdir()
    program.write_text(AGENT.format(python=sys.executable))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    with data_folder() as folder:
        async with serving_provider() as provider:
            provider.choose = lambda _: ProviderReply("Done.")
            port = free_port()
            ours = {
                "PATH": f"{program.parent}:{os.environ['PATH']}",
                "TMPDIR": str(tmp_path),
                "ANTHROPIC_BASE_URL": provider.url,
                "ANTHROPIC_API_KEY": "k",
                "PALIMPSEST_DATA_DIR": str(folder / "data"),
                "PALIMPSEST_PORT": str(port),
            }
            yield Desk(provider, {**os.environ, **ours}, f"http://127.0.0.1:{port}")


def _names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


async def line(process: asyncio.subprocess.Process) -> str:
    """Return the next line of a process's output; at its end, its standard error."""
    assert process.stdout is not None and process.stderr is not None
    async with asyncio.timeout(SECONDS_MAX):
        found = (await process.stdout.readline()).decode()
        return found or (await process.stderr.read()).decode()


async def end(process: asyncio.subprocess.Process, status: int) -> tuple[int, str]:
    """Let an agent end with a status; return that of the command, and its standard error."""
    async with asyncio.timeout(SECONDS_MAX):
        _, errors = await process.communicate(f"{status}\n".encode())
    return process.returncode or 0, errors.decode()


async def test_agents_share_a_server_that_ends_with_the_last_of_them(desk: Desk, tmp_path: Path) -> None:
    first = await desk.start("wrap", "claude", "--", "one")
    assert await line(first) == "context Done.\n"
    second = await desk.start("wrap", "claude", "--", "two")
    assert await line(second) == "context Done.\n"
    status, errors = await end(first, 3)
    assert status == 3 and f"server {desk.url} (started for this" in errors
    assert await desk.serves(), "the second agent still uses it"
    doctor = await desk.start("doctor", "claude")
    assert doctor.stdout is not None
    report = (await doctor.stdout.read()).decode()
    assert await doctor.wait() == 0, report
    assert report.count("a context was sent") == 2 and "FAULT" not in report
    assert "200,000 tokens, for claude-sonnet-4-5" in report
    status, errors = await end(second, 0)
    assert status == 0 and "(already running)" in errors
    assert not await desk.serves()
    assert _names(tmp_path) == ["bin"]
    asked = [one.body for one in desk.provider.calls()]
    assert [one["messages"][0]["content"][0]["text"] for one in asked] == ["one", "two"]


async def test_a_signal_reaches_the_agent_and_its_status_the_shell(desk: Desk) -> None:
    command = await desk.start("wrap", "claude", "--", "one")
    await line(command)
    command.send_signal(signal.SIGTERM)
    async with asyncio.timeout(SECONDS_MAX):
        assert await command.wait() == 7
    assert not await desk.serves()


async def test_what_is_missing_is_named(desk: Desk) -> None:
    command = await desk.start("wrap", "codex", PATH="/nowhere")
    assert "codex is not installed: npm install -g @openai/codex" in (await end(command, 0))[1]
    assert command.returncode == 127
    server = await desk.start("serve", PALIMPSEST_GATEWAY_OPENAI_URL=desk.provider.url)
    while "serving on" not in await line(server):
        pass
    command = await desk.start("wrap", "claude", "--", "one")
    assert "runs without a gateway for claude" in (await end(command, 0))[1]
    assert command.returncode == 1
    assert await desk.serves(), "a server of the user's own is left alone"
    server.send_signal(signal.SIGINT)
    await end(server, 0)
