"""The real commands on a distributed database: keys, a server with its worker, and every call rendered again."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from app.tenants import SCOPES
from tests.acceptance.conftest import Commands
from tests.support.processes import outcome, palimpsest
from tests.support.walk import POLICY, TALE

pytestmark = [pytest.mark.citus, pytest.mark.wing("shards")]


@pytest.fixture
async def commands(tmp_path: Path) -> AsyncIterator[Commands]:
    made = Commands(tmp_path / "data")
    yield made
    await made.kill_all()


async def test_keys_summaries_and_verify(shards_url: str, commands: Commands) -> None:
    async def said(*arguments: str, **settings: str) -> tuple[int, str]:
        done = await outcome(await palimpsest(*arguments, settings=settings))
        return done.returncode, done.stdout + done.stderr

    scopes = [part for scope in SCOPES for part in ("--scope", scope)]
    status, made = await said("keys", "create", "laptop", *scopes, DATABASE_URL=shards_url)
    assert status == 0, made
    secret = next(line for line in made.splitlines() if line.startswith("pal_"))
    server = await commands.start("serve", DATABASE_URL=shards_url)
    url = await server.url()
    async with httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {secret}"}, timeout=90) as http:

        async def ask(method: str, path: str, body: object = None) -> httpx.Response:
            answer = await http.request(method, f"/v1/sessions/{path}", json=body)
            assert answer.is_success, (path, answer.text)
            return answer

        await ask("PUT", "verified", {"policy": POLICY})
        for turn in range(14):
            said_now = [
                {"type": "user.message", "content": f"question {turn}"},
                {"type": "assistant.message", "content": TALE * 3},
            ]
            await ask("POST", "verified/events", {"events": said_now})
            await ask("POST", "verified/context", {"format": "openai"})
        await ask("POST", "verified/compactions", {"wait_ms": 60_000})
        assert (await ask("GET", "verified/summaries")).json()["items"]
        await ask("POST", "verified/fork", {"id": "verified-too"})
        for name in ("verified", "verified-too"):
            await ask("POST", f"{name}/context", {"format": "anthropic"})
        status, told = await said("verify", URL=url, API_KEY=secret)
        assert (status, told) == (
            *(0, "16 calls render again as they were sent, 0 but for what was erased since, 0 do not\n"),
        )
        await ask("DELETE", "verified/events/1")
        status, told = await said("verify", URL=url, API_KEY=secret)
        assert status == 0 and re.search(r" [1-9]\d* but for what was erased since, 0 do not", told), told
    status, listed = await said("keys", "list", DATABASE_URL=shards_url)
    key_id = next(line.split()[0] for line in listed.splitlines() if " laptop " in line)
    assert (await said("keys", "revoke", key_id, DATABASE_URL=shards_url))[0] == 0
    async with httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {secret}"}, timeout=30) as http:
        assert (await http.get("/healthz")).status_code == 200
    assert (await server.stop())[0] == 0
