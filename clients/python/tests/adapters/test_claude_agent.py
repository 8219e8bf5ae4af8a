"""Transcripts of the Claude Agent SDK: its own conformance suite, and its own runner with a stand-in of the program."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from claude_agent_sdk import (
    ClaudeAgentOptions,
    ClaudeSDKClient,
    ResultMessage,
    get_session_messages_from_store,
    list_sessions_from_store,
    query,
)
from claude_agent_sdk._internal.sessions import project_key_for_directory
from claude_agent_sdk.testing import run_session_store_conformance

from palimpsest import AsyncPalimpsest
from palimpsest.claude_agent import PalimpsestSessionStore, session_id
from tests.adapters.support import Gate

Json = dict[str, Any]
PROGRAM = Path(__file__).with_name("claude_cli.py")


@pytest.fixture
async def client(palimpsest: Gate) -> AsyncIterator[AsyncPalimpsest]:
    async with AsyncPalimpsest(base_url=palimpsest.url, max_retries=0) as one:
        yield one


@pytest.fixture
def options(tmp_path: Path, client: AsyncPalimpsest) -> ClaudeAgentOptions:
    """Return options for the SDK's own process runner, with a program that speaks its protocol."""
    program = tmp_path / "claude"
    program.write_text(f"#!{sys.executable}\n" + PROGRAM.read_text())
    program.chmod(0o755)
    work = tmp_path / "work"
    work.mkdir()
    settings = {"CLAUDE_CONFIG_DIR": str(tmp_path / "config")}
    return ClaudeAgentOptions(cli_path=program, cwd=work, env=settings, session_store=PalimpsestSessionStore(client))


async def ask(prompt: str, options: ClaudeAgentOptions) -> ResultMessage:
    results = [one async for one in query(prompt=prompt, options=options) if isinstance(one, ResultMessage)]
    assert len(results) == 1
    return results[0]


async def test_it_closes_connections_of_its_own_only(client: AsyncPalimpsest) -> None:
    own = PalimpsestSessionStore()
    for store in (own, PalimpsestSessionStore(client)):
        await store.aclose()
    assert own._client._transport.http.is_closed
    assert not client._transport.http.is_closed


async def test_it_is_a_session_store_by_the_sdks_own_suite(client: AsyncPalimpsest) -> None:
    async def empty() -> PalimpsestSessionStore:
        async for one in client.list_sessions():
            if one.id.startswith("claude:"):
                await client.session(one.id).delete_session()
        return PalimpsestSessionStore(client)

    await run_session_store_conformance(empty)


async def test_a_session_is_resumed_where_its_files_are_gone(
    options: ClaudeAgentOptions, client: AsyncPalimpsest, tmp_path: Path
) -> None:
    first = await ask("Look twice.", options)
    assert first.result == "I remember 0 entries."
    files = list((tmp_path / "config").rglob("*.jsonl"))
    written = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert len(written) == 7
    key: Any = {"project_key": project_key_for_directory(options.cwd), "session_id": first.session_id}
    assert options.session_store is not None
    assert await options.session_store.load(key) == written

    shutil.rmtree(tmp_path / "config")
    options.resume = first.session_id
    options.session_store = PalimpsestSessionStore(client)  # a process that starts again
    assert (await ask("And now?", options)).result == "I remember 7 entries."
    loaded = await options.session_store.load(key)
    assert loaded is not None and loaded[:7] == written and len(loaded) == 14
    options.resume, options.continue_conversation = None, True
    assert (await ask("Go on.", options)).result == "I remember 14 entries."


async def test_messages_are_in_the_log_and_other_entries_are_never_rendered(
    options: ClaudeAgentOptions, client: AsyncPalimpsest, palimpsest: Gate
) -> None:
    told = await ask("Look twice.", options)
    key: Any = {"project_key": project_key_for_directory(options.cwd), "session_id": told.session_id}
    events = palimpsest.events(session_id(key))
    assert [(one.type, one.call_id) for one in events] == [
        ("agent.note", None),
        ("user.message", None),
        ("tool.call", "call-0-1"),
        ("tool.call", "call-0-2"),
        ("tool.result", "call-0-1"),
        ("tool.result", "call-0-2"),
        ("assistant.message", None),
    ]
    context = await client.session(session_id(key)).post_context(format="anthropic")
    assert [one["role"] for one in context.request["messages"]] == ["user", "assistant", "user", "assistant"]
    assert "mode" not in json.dumps(context.request)
    assert options.session_store is not None
    listed = await list_sessions_from_store(options.session_store, directory=str(options.cwd))
    assert [one.session_id for one in listed] == [told.session_id]
    assert len(await get_session_messages_from_store(options.session_store, told.session_id, str(options.cwd))) == 6


async def test_a_client_that_stays_open_mirrors_each_turn(options: ClaudeAgentOptions) -> None:
    results = []
    async with ClaudeSDKClient(options) as agent:
        for prompt in ("One.", "Two."):
            await agent.query(prompt)
            async for one in agent.receive_response():
                if isinstance(one, ResultMessage):
                    results.append(one)
                    assert options.session_store is not None
                    key: Any = {"project_key": project_key_for_directory(options.cwd), "session_id": one.session_id}
                    loaded = await options.session_store.load(key)
                    assert loaded is not None and len(loaded) == 7 * len(results)
    assert [one.result for one in results] == ["I remember 0 entries.", "I remember 7 entries."]


@pytest.mark.parametrize("mode", ["failing", "broken", "garbage", "hollow", "refusing"])
async def test_while_the_server_is_away_the_agent_continues_and_warns_its_caller(
    options: ClaudeAgentOptions, palimpsest: Gate, mode: str
) -> None:
    palimpsest.mode = mode
    told = [one async for one in query(prompt="Look.", options=options)]
    assert [one.result for one in told if isinstance(one, ResultMessage)] == ["I remember 0 entries."]
    assert [type(one).__name__ for one in told].count("MirrorErrorMessage") == 1


async def test_entries_come_once_however_often_they_are_sent_and_none_is_lost(client: AsyncPalimpsest) -> None:
    store = PalimpsestSessionStore(client)
    key: Any = {"project_key": "p", "session_id": f"once-{os.getpid()}"}
    calling = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "Look", "input": {}}]}
    orphan = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "compacted away", "content": "x"}]}
    entries: Any = [
        {"type": "assistant", "uuid": "1", "message": calling},
        {"type": "user", "uuid": "2", "message": orphan},
        {"type": "user", "uuid": "3", "message": {"role": "user", "content": "nul \0, half \ud83d, \N{SNOWMAN}"}},
        {"type": "summary", "deep": [[[{"a": [1.5, None, True]}]]], "big": 2**70},
    ]
    await store.append(key, entries[:1])
    await store.append(key, entries)
    await store.append(key, entries[:3])
    assert await store.load(key) == entries
    await store.append(key, [{"type": "user", "uuid": str(n), "message": {"content": "x"}} for n in range(9, 1_500)])
    loaded = await store.load(key)
    assert loaded is not None and len(loaded) == 4 + 1_491
