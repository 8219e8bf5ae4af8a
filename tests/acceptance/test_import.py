"""Import of files into a running server by the real command: once, with their times, and despite failures of some."""

import json
from pathlib import Path

import httpx
import pytest

from app.runtime.settings import Settings
from tests.acceptance.transfers import SAMPLES, Run, command, exported, imported, log
from tests.conftest import serving
from tests.tools.logs import lines, log_line, result, text, use


@pytest.fixture
def run(server: str) -> Run:
    """Return a runner of commands that find the server by PALIMPSEST_URL."""
    return lambda *arguments: command(*arguments, settings={"URL": server})


async def test_every_sample_is_imported_once(run: Run, client: httpx.AsyncClient) -> None:
    files = sorted(path for path in SAMPLES.iterdir() if path.suffix != ".md")
    first = await imported(run, *files)
    assert {name: added for name, (_, added) in first.items()} == {
        "agent_log": 34,
        "agent_log.agent-1": 2,
        "anthropic_messages": 35,
        "codex_rollout": 31,
        "gemini_chat": 19,
        "gemini_lines": 9,
        "openai_messages": 30,
        "ses_5f0b1tide0001": 18,
        "tide-1": 30,
        "tide-2": 22,
        "tide-3": 44,
    }
    before = {name: await log(client, name) for name in first}
    assert all(len(before[name]) == events for name, (events, _) in first.items())
    assert await imported(run, *files) == {name: (events, 0) for name, (events, _) in first.items()}
    assert {name: await log(client, name) for name in first} == before


async def test_events_happened_when_the_file_says(run: Run, client: httpx.AsyncClient) -> None:
    await imported(run, SAMPLES / "agent_log.jsonl", "--session", "s", "--model", "claude-sonnet-5-5")
    events = await log(client, "s")
    assert events[0]["occurred_at"] == "2026-01-05T08:00:14Z"
    times = [event["occurred_at"] for event in events]
    assert times == sorted(times)
    assert (await client.get("/v1/sessions/s")).json()["model"] == "claude-sonnet-5-5"
    assert (await client.get("/v1/sessions/s.agent-1")).json()["head"] == 2


async def test_characters_that_no_text_may_hold_are_imported_once(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "s.json"
    file.write_text('[{"role": "user", "content": "a\\ud800b\\u0000c"}, {"role": "assistant", "content": "\\udfff"}]')
    assert await imported(run, file) == {"s": (2, 2)}
    assert await imported(run, file) == {"s": (2, 0)}
    (line,) = await exported(run, "s")
    assert [event["content"] for event in line["events"]] == ["a\ud800b\x00c", "\udfff"]


async def test_requests_are_as_small_as_the_server_wants_them(database_url: str, tmp_path: Path) -> None:
    file = tmp_path / "s.json"
    file.write_text(json.dumps([{"role": "user", "content": "x" * 300}] * 100))
    async with serving(Settings(body_bytes_max=4_096), database_url) as url:
        done = await command("import", file, settings={"URL": url})
    assert (done.returncode, done.stdout.splitlines()[0], done.stderr) == (0, "s: 100 events, 100 new", "")


# A folder of a coding agent's logs


MAIN, OTHER = "0a1b2c3d-0000-4000-8000-000000000001", "0a1b2c3d-0000-4000-8000-000000000002"


def turn(number: int, **more: object) -> str:
    """Return a question, a call, its result and a response, as an agent logs them."""
    return lines(
        log_line(
            "user", f"question {number}", uuid=f"{more}{number}.1", timestamp=f"2026-01-05T08:{number:02}:00Z", **more
        ),
        log_line("assistant", [use(f"t{number}")], key=f"a{number}", uuid=f"{more}{number}.2", **more),
        log_line("user", [result(f"t{number}")], uuid=f"{more}{number}.3", **more),
        log_line("assistant", [text(f"answer {number}")], key=f"b{number}", uuid=f"{more}{number}.4", **more),
    )


def side(agent: str, session: str = MAIN) -> dict[str, object]:
    return {"isSidechain": True, "agentId": agent, "sessionId": session}


@pytest.fixture
def projects(tmp_path: Path) -> Path:
    """Create a folder as an agent fills it: two projects, sub-agents of every format, and files without sessions."""
    one, two = tmp_path / "-home-ann-tides", tmp_path / "-home-ann-other"
    workflow = one / MAIN / "subagents" / "workflows" / "wf_1"
    workflow.mkdir(parents=True)
    two.mkdir()
    one.joinpath(f"{MAIN}.jsonl").write_text(lines({"type": "summary", "summary": "x"}) + turn(1))
    one.joinpath(MAIN, "subagents", "agent-a1.jsonl").write_text(turn(2, **side("a1")))
    one.joinpath(MAIN, "subagents", "agent-a1.meta.json").write_text('{"agentType": "general"}')
    workflow.joinpath("agent-a2.jsonl").write_text(turn(3, **side("a2")))
    workflow.joinpath("journal.jsonl").write_text(lines({"type": "started", "agentId": "a2"}))
    one.joinpath("sessions-index.json").write_text('{"version": 1, "entries": []}')
    two.joinpath(f"{OTHER}.jsonl").write_text(turn(4))
    two.joinpath("agent-a1.jsonl").write_text(turn(5, **side("a1", OTHER)))  # older agents put it here
    return tmp_path


async def test_a_folder_of_logs_with_sub_agents_as_sessions_of_their_own(
    run: Run, client: httpx.AsyncClient, projects: Path
) -> None:
    names = {MAIN, f"{MAIN}.agent-a1", f"{MAIN}.agent-a2", OTHER, f"{OTHER}.agent-a1"}
    assert await imported(run, projects) == dict.fromkeys(names, (4, 4))
    questions = {name: (await log(client, name))[0]["content"][0]["text"] for name in sorted(names)}
    assert list(questions.values()) == [f"question {number}" for number in (1, 2, 3, 4, 5)]
    log_file = projects / "-home-ann-tides" / f"{MAIN}.jsonl"
    log_file.write_text(log_file.read_text() + turn(6))
    assert await imported(run, projects) == dict.fromkeys(names, (4, 0)) | {MAIN: (8, 4)}


async def test_each_files_result_is_printed_and_failures_do_not_stop_others(run: Run, projects: Path) -> None:
    broken = projects / "broken.jsonl"
    broken.write_text(turn(1) + "{oops\n")
    other = projects / "other.jsonl"
    other.write_text('{"type": 3}\n')
    done = await run("import", projects)
    assert done.returncode == 1
    journal = projects / "-home-ann-tides" / MAIN / "subagents" / "workflows" / "wf_1" / "journal.jsonl"
    assert done.stdout.splitlines() == [
        f"{OTHER}: 4 events, 4 new",
        f"{OTHER}.agent-a1: 4 events, 4 new",
        f"{MAIN}.agent-a1: 4 events, 4 new",
        f"{MAIN}.agent-a2: 4 events, 4 new",
        f"{journal}: skipped, no message of a conversation in it",
        f"{MAIN}: 4 events, 4 new",
        "5 sessions, 20 events, 20 new, 2 not imported",
    ]
    first, second = done.stderr.splitlines()
    assert first.startswith(f"palimpsest: {broken}:5: no recording that can be read: not JSON")
    assert second.startswith(f"palimpsest: {other}: no recording that can be read: messages must be a list")


async def test_another_session_of_the_same_name_is_left_alone(
    run: Run, client: httpx.AsyncClient, tmp_path: Path
) -> None:
    mine = {"events": [{"type": "user.message", "content": "mine"}]}
    (await client.post("/v1/sessions/chat/events", json=mine)).raise_for_status()
    file = tmp_path / "chat.json"
    file.write_text('[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]')
    done = await run("import", file)
    assert (done.returncode, done.stdout) == (1, "0 sessions, 0 events, 0 new, 1 not imported\n")
    assert "session chat exists and holds something else" in done.stderr
    assert len(await log(client, "chat")) == 1
    assert await imported(run, file, "--prefix", "old:") == {"old:chat": (2, 2)}
    file.write_text('[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "no"}]')
    done = await run("import", file, "--prefix", "old:")
    assert done.returncode == 1
    assert "session old:chat holds an event of this file with other content" in done.stderr
    assert [event["content"] for event in await log(client, "old:chat")] == ["hi", "ho"]


async def test_an_import_that_the_server_refuses_leaves_no_session(
    run: Run, client: httpx.AsyncClient, tmp_path: Path
) -> None:
    good = {"id": "good/one", "messages": [{"role": "user", "content": "hi"}]}
    bad = {"id": "bad", "messages": [{"role": "tool", "tool_call_id": "nobody's", "content": "x"}]}
    file = tmp_path / "two.jsonl"
    file.write_text(lines(bad, good))
    done = await run("import", file)
    assert done.returncode == 1
    assert f"palimpsest: {file}: session bad: unknown-call: " in done.stderr
    assert done.stdout == "good-one: 1 event, 1 new\n1 session, 1 event, 1 new, 1 not imported\n"
    assert [one["id"] for one in (await client.get("/v1/sessions")).json()["items"]] == ["good-one"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("import", SAMPLES, "--session", "s"), "--session names the session of one file"),
        (("import", SAMPLES / "neutral.jsonl", "--session", "a b"), "--session may hold letters, digits and"),
        (("import", SAMPLES.parent / "unit" / "render" / "formats"), "there is no log of an agent in"),
        (("import", SAMPLES / "none.json"), "does not exist"),
        (("export", "a", "b", "--format", "openai"), "one session a file in the format openai"),
        (("export", "a", "--format", "blocks"), "blocks"),
    ],
)
async def test_invalid_arguments_send_nothing(run: Run, arguments: tuple[str | Path, ...], says: str) -> None:
    done = await run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr


async def test_an_import_waits_when_it_is_too_fast(database_url: str, tmp_path: Path) -> None:
    file = tmp_path / "s.jsonl"
    say = [{"role": "user", "content": str(number)} for number in range(1, 1_050)]
    file.write_text(lines({"id": "s", "messages": say}))
    async with serving(Settings(tenant_events_per_second=100), database_url) as url:
        done = await command("import", file, settings={"URL": url})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("s: 1,049 events, 1,049 new\n")
