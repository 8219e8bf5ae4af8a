"""The command `bench` on a home folder with sessions of every agent, through a server that it starts itself."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import Result, outcome, palimpsest
from tests.tools import opencode

SAMPLES = Path(__file__).parents[1] / "samples"
WINDOW = "30000"


def home(root: Path) -> list[str]:
    """Put the samples where agents keep their sessions; return the folders."""
    places = {
        ".claude/projects/tides/agent_log.jsonl": "agent_log.jsonl",
        ".codex/sessions/2026/06/01/rollout-1.jsonl": "codex_rollout.jsonl",
        ".gemini/tmp/hash/chats/session-1.json": "gemini_chat.json",
        ".gemini/tmp/hash/chats/session-2.jsonl": "gemini_lines.jsonl",
    }
    for place, sample in places.items():
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(SAMPLES / sample, root / place)
    opencode.write_folder(root / ".local/share/opencode")
    (root / ".claude/projects/tides/damaged.jsonl").write_bytes(b"\xff\n")
    return [
        str(root / place) for place in (".claude/projects", ".codex/sessions", ".gemini/tmp", ".local/share/opencode")
    ]


async def bench(*arguments: str) -> Result:
    return await outcome(await palimpsest("bench", *arguments, settings={"SUMMARIZER": "anthropic"}))


@pytest.mark.slow
async def test_sessions_of_every_agent_are_compared(tmp_path: Path) -> None:
    folders = home(tmp_path)
    result = await bench(*folders, "--min-calls", "2", "--max-tokens", WINDOW, "--json")
    assert result.returncode == 0, result.stdout + result.stderr
    *sessions, last = [json.loads(line) for line in result.stdout.splitlines()]
    total: dict[str, Any] = last["total"]
    assert {one["agent"] for one in sessions} == {"claude", "codex", "gemini", "opencode"}
    assert {one["failure"] and one["failure"]["type"] for one in sessions} <= {None, "budget-too-small"}
    assert total["sessions"] + total["not_compared"] == len(sessions)
    assert any("damaged.jsonl" in note for note in total["notes"])
    for one in sessions:
        rules = one["rules"]
        if one["failure"] is None:
            ours, everything = rules["Palimpsest"], rules["append-only, no limit"]
            assert ours["too_long"] == 0
            assert ours["values"]["every_use"]["used"] == everything["values"]["every_use"]["used"]
            assert everything["values"]["every_use"]["visible"] == everything["values"]["every_use"]["used"]
    assert all(one["recorded"]["billed"] > 0 for one in sessions if one["agent"] == "codex")
    assert "without your settings" in result.stderr


@pytest.mark.slow
async def test_people_read_tables_with_their_assumptions() -> None:
    result = await bench(str(SAMPLES / "neutral.jsonl"), "--min-calls", "2", "--max-tokens", "4000")
    assert result.returncode == 0, result.stdout + result.stderr
    for words in ("no model was called", "SESSIONS", "RULES", "WHERE PALIMPSEST LOSES", "Assumed prices", "tide-1"):
        assert words in result.stdout


async def test_a_folder_without_sessions_says_where_agents_keep_them(tmp_path: Path) -> None:
    result = await bench(str(tmp_path))
    assert (result.returncode, result.stdout) == (2, "")
    assert "no session to compare" in result.stderr
    assert "~/.claude/projects (Claude Code)" in result.stderr


async def test_a_file_of_an_unknown_format_is_named(tmp_path: Path) -> None:
    file = tmp_path / "notes.jsonl"
    file.write_text('{"a": 1}\n')
    result = await bench(str(file))
    assert (result.returncode, result.stdout) == (2, "")
    assert "notes.jsonl" in result.stderr
    assert "logs of Claude Code, Codex, Gemini CLI, opencode are read" in result.stderr
