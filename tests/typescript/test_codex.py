"""The real Codex at the gateway: its remote compactions over an upstream that has none."""

import asyncio
import json
import os
from pathlib import Path

import httpx
import pytest

from tests.conftest import serving
from tests.support.gateways import settings
from tests.support.provider import Provider, ProviderReply, ReceivedRequest, serving_provider
from tests.support.tenants import working

(PROGRAM,) = [*Path(__file__).parent.glob("node_modules/codex-linux-x64/vendor/*/bin/codex"), None][:1]
pytestmark = [
    pytest.mark.typescript,
    pytest.mark.wing("gateway"),
    pytest.mark.skipif(PROGRAM is None, reason="Codex is only installed on Linux with x86-64, by npm"),
]

ROUNDS = 40
WINDOW, COMPACTED_FROM = 26_000, 20_000
"""The gateway's window, and the usage from which Codex compacts."""


def counting(provider: Provider) -> None:
    """Have the model run a command in each round, and then answer."""

    def choose(_: ReceivedRequest) -> ProviderReply:
        number = len(provider.calls())
        if number > ROUNDS:
            return ProviderReply(f"Counted {ROUNDS}.")
        command = f"echo gate {number}; seq {number}000 {number}400"
        return ProviderReply("", [(f"call_{number}", "exec_command", {"cmd": command})])

    provider.choose = choose


async def codex(folder: Path, gateway: str, *arguments: str) -> str:
    """Run Codex with a folder of its own, as `palimpsest wrap codex` sets it up; return its output."""
    assert PROGRAM is not None
    home = folder / "home"
    home.mkdir()
    server = (
        f'{{name="OpenAI", base_url="{gateway}/gateway/openai/v1", env_key="OPENAI_API_KEY", wire_api="responses"}}'
    )
    given = ["-c", 'model_provider="palimpsest"', "-c", f"model_providers.palimpsest={server}"]
    given += ["-c", f"model_auto_compact_token_limit={COMPACTED_FROM}", "-m", "gpt-5-codex"]
    process = await asyncio.create_subprocess_exec(
        *(PROGRAM, "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", *given, *arguments),
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(home), "CODEX_HOME": str(home), "OPENAI_API_KEY": "sk-test"},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    assert process.returncode == 0, out.decode()
    return out.decode()


async def test_its_compactions_are_answered_and_it_goes_on(
    database_url: str, client: httpx.AsyncClient, tmp_path: Path
) -> None:
    async with (
        serving_provider() as provider,
        working(database_url),
        serving(settings(provider, gateway_openai_window_tokens=WINDOW), database_url) as url,
    ):
        counting(provider)
        out = await codex(tmp_path, url, "Count everything.")
    assert f"Counted {ROUNDS}." in out
    assert out.count("context compacted") >= 3
    assert provider.refused == []
    calls = provider.calls()
    assert len(calls) == len(provider.requests) == ROUNDS + 1
    sent = {item.get("type", "message") for call in calls for item in call.body["input"]}
    assert {"message", "function_call", "function_call_output"} <= sent and not sent & {
        "compaction",
        "compaction_trigger",
    }
    assert "Count everything." in json.dumps(calls[-1].body["input"])
    (listed,) = (await client.get("/v1/sessions")).json()["items"]
    assert len((await client.get(f"/v1/sessions/{listed['id']}/lines")).json()["items"]) == 1
    session = (await client.get(f"/v1/sessions/{listed['id']}")).json()
    assert session["tokens"]["log"] > 2 * WINDOW
    events = (await client.get(f"/v1/sessions/{listed['id']}/events", params={"limit": 1000})).json()["items"]
    assert sum(event["type"] == "tool.result" for event in events) == ROUNDS
