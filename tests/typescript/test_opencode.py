"""The real opencode with the plugin: long runs in a small window, outages, and two sessions side by side."""

import asyncio
import json
import os
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.client.wire import ScriptedReply, provider
from tests.support.clusters import free_port
from tests.typescript.conftest import NEEDS_NPM, PACKAGE

PROGRAM = Path(__file__).parent / "node_modules" / "opencode-linux-x64" / "bin" / "opencode"
pytestmark = [
    *NEEDS_NPM,
    pytest.mark.wing("recall"),
    pytest.mark.skipif(not PROGRAM.exists(), reason="opencode is only installed on Linux with x86-64"),
]

ROUNDS = 40
WINDOW, ANSWER = 20_000, 2_000
CHARS_PER_TOKEN = 4
CALL = re.compile(r"echo round (\d+)")


def counting(rounds: int) -> Any:
    """Return a model that runs a command in each round, and then answers; requests without tools are for titles."""

    def think(body: dict[str, Any]) -> ScriptedReply:
        if not body.get("tools"):
            return ScriptedReply("A title")
        done = max(map(int, CALL.findall(json.dumps(body["messages"]))), default=-1) + 1
        asked = body["messages"][-1]["role"] == "user"
        if done >= rounds and not asked:
            return ScriptedReply(f"Counted {done}.")
        command = f"echo round {done}; seq {done}0000 {done}0900"
        return ScriptedReply(calls=[("bash", {"command": command, "description": "Count"})])

    return think


def project(folder: Path, models: str, server: str) -> None:
    """Create a project with opencode's settings, or change them."""
    model = {"name": "M", "tool_call": True, "limit": {"context": WINDOW + ANSWER, "output": ANSWER}}
    options = {"baseURL": f"{models}/v1", "apiKey": "sk-test"}
    config = {
        "model": "stand/gpt-4o",
        "small_model": "stand/gpt-4o",
        "permission": "allow",
        "autoupdate": False,
        "share": "disabled",
        "provider": {
            "stand": {"npm": "@ai-sdk/openai-compatible", "options": options, "models": {"gpt-4o": model}},
        },
        "plugin": [[(PACKAGE / "dist" / "opencode.js").as_uri(), {"url": server, "timeout": 20_000}]],
    }
    folder.mkdir(exist_ok=True)
    (folder / "opencode.json").write_text(json.dumps(config))


async def opencode(folder: Path, models: str, server: str, *arguments: str) -> tuple[str, str]:
    """Run opencode in a project of its own; return its output and its warnings."""
    project(folder, models, server)
    homes = {name: str(folder / name) for name in ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")}
    process = await asyncio.create_subprocess_exec(
        *(PROGRAM, "run", *arguments),
        cwd=folder,
        env={"PATH": os.environ["PATH"], "XDG_STATE_HOME": str(folder / "state"), **homes},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, errors = (text.decode() for text in await process.communicate())
    assert process.returncode == 0, out + errors
    return out, errors


async def only_session(client: httpx.AsyncClient) -> dict[str, Any]:
    (listed,) = (await client.get("/v1/sessions")).json()["items"]
    session: dict[str, Any] = (await client.get(f"/v1/sessions/{listed['id']}")).json()
    return session


async def test_forty_rounds_in_a_quarter_of_their_window(
    built: Path, server: str, client: httpx.AsyncClient, tmp_path: Path
) -> None:
    async with provider(counting(ROUNDS)) as models:
        out, errors = await opencode(tmp_path / "a", models.url, server, "Count everything.")
    assert f"Counted {ROUNDS}." in out
    assert "palimpsest:" not in errors
    requests = [body for body in models.requests if body.get("tools")]
    assert len(requests) == ROUNDS + 1
    assert max(len(json.dumps(body)) / CHARS_PER_TOKEN for body in requests) <= WINDOW
    session = await only_session(client)
    assert session["tokens"]["log"] >= 4 * WINDOW
    assert session["head"] == 2 * ROUNDS + 2  # a question, calls with results, and an answer
    path = f"/v1/sessions/{session['id']}"
    last = (await client.get(f"{path}/events/{session['head']}")).json()
    assert (last["type"], last["content"]) == ("assistant.message", f"Counted {ROUNDS}.")
    assert len((await client.get(f"{path}/lines")).json()["items"]) == 1
    calls = (await client.get(f"{path}/calls", params={"limit": 1000})).json()["items"]
    assert len(calls) == ROUNDS + 1
    assert sum(call["outcome"]["usage"]["input_tokens"] is not None for call in calls) == ROUNDS


async def test_without_the_server_it_works_on_with_one_warning_and_the_log_catches_up(
    built: Path, server: str, client: httpx.AsyncClient, tmp_path: Path
) -> None:
    async with provider(counting(3)) as models:
        down = f"http://127.0.0.1:{free_port()}"
        out, errors = await opencode(tmp_path / "a", models.url, down, "Count everything.")
        assert "Counted 3." in out
        assert errors.count("palimpsest: the server is unreachable") == 1
        await opencode(tmp_path / "a", models.url, server, "--continue", "Once more.")
    events = (await client.get(f"/v1/sessions/{(await only_session(client))['id']}/events")).json()["items"]
    questions = [event["content"] for event in events if event["type"] == "user.message"]
    assert len(questions) == 2 and "Count everything." in str(questions[0])
    assert sum(event["type"] == "tool.result" for event in events) == 4


async def test_two_sessions_side_by_side(built: Path, server: str, client: httpx.AsyncClient, tmp_path: Path) -> None:
    async with provider(counting(5)) as models:
        runs = [opencode(tmp_path / name, models.url, server, f"Count for {name}.") for name in ("a", "b")]
        assert all("Counted 5." in out for out, _ in await asyncio.gather(*runs))
    listed = (await client.get("/v1/sessions")).json()["items"]
    assert len(listed) == 2
    for session in listed:
        path = f"/v1/sessions/{session['id']}"
        events = (await client.get(f"{path}/events")).json()["items"]
        assert len(events) == 12
        assert len({event["content"] for event in events if event["type"] == "user.message"}) == 1
        assert len((await client.get(f"{path}/lines")).json()["items"]) == 1
