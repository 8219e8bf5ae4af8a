"""Coding agents at the gateway for a thousand requests each, and recorded sessions through it."""

import json
from collections import Counter
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest

from app.runtime.settings import Settings
from app.store.engine import Database
from tests.conftest import serving
from tests.contract.gateway.test_agents import run_agents
from tests.support.provider import Provider, ProviderReply, ReceivedRequest, serving_provider

pytestmark = [pytest.mark.long, pytest.mark.wing("gateway")]


@pytest.mark.parametrize("window", [None, 3_000])
async def test_agents_of_a_thousand_requests(
    database_url: str, database: Database, capsys: pytest.CaptureFixture[str], window: int | None
) -> None:
    await run_agents(database_url, database, capsys, 1_000, window=window)


@pytest.mark.parametrize("mode", ["enforce", "observe"])
async def test_recorded_sessions_through_the_gateway(
    database_url: str, pytestconfig: pytest.Config, mode: Literal["enforce", "observe"]
) -> None:
    """Each call of a recording is sent with the list up to it, and gets the recorded response."""
    folder: Path | None = pytestconfig.getoption("--recordings")
    if folder is None:
        pytest.skip("no recordings given")
    modes = Counter[str]()
    async with serving_provider() as provider:
        settings = Settings(gateway_openai_url=provider.url, gateway_mode=mode)
        async with (
            serving(settings, database_url) as url,
            httpx.AsyncClient(base_url=url, timeout=90, verify=False) as http,
        ):
            for path in sorted(folder.glob("*agent.jsonl")):  # noqa: ASYNC240
                for line in path.read_text(encoding="utf-8").splitlines()[:10]:
                    await _replay(http, provider, json.loads(line), modes)
        print(mode, dict(modes))
        assert not provider.refused, provider.refused[:3]


def arguments_object(arguments: Any) -> Any:
    """Return arguments as an object; some recordings have them as text."""
    return json.loads(arguments or "{}") if isinstance(arguments, str) else arguments


async def _replay(http: httpx.AsyncClient, provider: Provider, recording: dict[str, Any], modes: Counter[str]) -> None:
    """Send the calls of a recording, and count the modes in which they were answered."""
    messages: list[dict[str, Any]] = []
    if recording["system"]:
        messages.append({"role": "system", "content": recording["system"]})
    session = recording["id"].replace("/", "-")
    await http.put(f"/v1/sessions/{session}", json={"policy": {"window_tokens": 60_000}, "model": "test-model"})
    for recorded in recording["messages"]:
        calls = [
            (one["id"], one["name"], arguments_object(one["arguments"])) for one in recorded.get("tool_calls") or ()
        ]
        if recorded["role"] == "assistant":
            said = ProviderReply(recorded.get("content") or "", calls)

            def choose(_: ReceivedRequest, said: ProviderReply = said) -> ProviderReply:
                return said

            provider.choose = choose
            body = {"model": "test-model", "messages": messages, "stream": len(messages) % 2 == 0}
            raw = json.dumps(body, indent=1).encode()
            path, headers = f"/gateway/s/{session}/openai/v1/chat/completions", {"content-type": "application/json"}
            answer = await http.post(path, content=raw, headers=headers)
            assert answer.status_code == 200, answer.text
            gone = answer.headers["x-palimpsest-mode"]
            modes[gone] += 1
            if gone == "bypass":  # a turn that does not fit a window of this size
                assert answer.headers["x-palimpsest-reason"] == "context-infeasible"
            if gone != "context":
                same = provider.requests[-1].raw == raw
                assert same, len(raw)
            provider.requests.clear()
        native = {name: value for name, value in recorded.items() if name in ("role", "content", "tool_call_id")}
        if calls:
            native["tool_calls"] = [
                {"id": id, "type": "function", "function": {"name": name, "arguments": json.dumps(value)}}
                for id, name, value in calls
            ]
        messages.append(native)
    lines = (await http.get(f"/v1/sessions/{session}/lines")).json()["items"]
    assert len(lines) == 1, "a list that only grew was taken for another one"
