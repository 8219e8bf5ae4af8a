"""Sessions of files into a running server and out of it again, by the real commands."""

import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import pytest

from app.settings import Settings
from tests.conftest import serving
from tests.support.processes import Result, outcome, palimpsest
from tests.unit.recordings.logs import lines, log_line, result, text, use

SAMPLES = Path(__file__).parents[1] / "samples"

Run: TypeAlias = Callable[..., Awaitable[Result]]
Json: TypeAlias = dict[str, Any]


async def command(*arguments: str | Path, settings: Mapping[str, str]) -> Result:
    return await outcome(await palimpsest(*map(str, arguments), settings=settings))


@pytest.fixture
def run(server: str) -> Run:
    """A command that finds the server by PALIMPSEST_URL."""
    return lambda *arguments: command(*arguments, settings={"URL": server})


def told(done: Result) -> list[Json]:
    return [json.loads(line) for line in done.stdout.splitlines()]


async def imported(run: Run, *arguments: str | Path) -> dict[str, tuple[int, int]]:
    """The sessions of an import that succeeded, each with its events and how many of them were new."""
    done = await run("import", *arguments, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    *sessions, total = told(done)
    assert total["total"]["ok"]
    return {one["session"]: (one["events"], one["added"]) for one in sessions if "session" in one}


async def exported(run: Run, *sessions: str, format: str = "neutral") -> list[Json]:
    done = await run("export", *sessions, "--format", format)
    assert (done.returncode, done.stderr) == (0, "")
    return told(done)


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


async def log(client: httpx.AsyncClient, session: str) -> list[Json]:
    page = (await client.get(f"/v1/sessions/{session}/events", params={"limit": 1000})).raise_for_status().json()
    assert page["next_cursor"] is None
    events: list[Json] = page["items"]
    return events


async def test_every_sample_is_imported_once(run: Run, client: httpx.AsyncClient) -> None:
    files = sorted(path for path in SAMPLES.iterdir() if path.suffix != ".md")
    first = await imported(run, *files)
    assert {name: added for name, (_, added) in first.items()} == {
        "agent_log": 34,
        "agent_log.agent-1": 2,
        "anthropic_messages": 35,
        "openai_messages": 30,
        "tide-1": 30,
        "tide-2": 22,
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


@pytest.mark.parametrize("name", ["anthropic_messages", "openai_messages"])
async def test_a_conversation_comes_out_in_its_format_as_it_went_in(run: Run, name: str) -> None:
    document = json.loads((SAMPLES / f"{name}.json").read_text(encoding="utf-8"))
    await imported(run, SAMPLES / f"{name}.json")
    (written,) = await exported(run, name, format=name.removesuffix("_messages"))
    assert written == document


MESSAGES: dict[str, list[Json]] = {
    "openai": [
        {"role": "user", "content": [{"type": "text", "text": "a"}], "name": "ann"},
        {
            "role": "assistant",
            "content": None,
            "refusal": None,
            "tool_calls": [
                {"id": "o1", "type": "function", "function": {"name": "look", "arguments": '{"a" : 1}'}},
                {"id": "o2", "type": "custom", "custom": {"name": "sh", "input": "ls"}},
            ],
        },
        {"role": "tool", "tool_call_id": "o2", "content": ""},
        {"role": "tool", "tool_call_id": "o1", "content": "ünïcödé 🐈"},
        {"role": "developer", "content": "Be kind."},
    ],
    "anthropic": [
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "t1", "name": "look", "input": {"a": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "no", "is_error": True},
                {"type": "text", "text": "Go on."},
            ],
        },
    ],
    "openai-responses": [
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "eA=="},
        {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "AAAA"},
        {"type": "function_call", "id": "fc_1", "call_id": "r1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "r1", "output": "yes"},
        {"type": "local_shell_call", "id": "ls_1", "call_id": "r2", "action": {"type": "exec", "command": ["ls"]}},
        {"type": "local_shell_call_output", "id": "ls_1", "output": "a.txt"},
        {"role": "assistant", "type": "message", "content": [{"type": "output_text", "text": "b", "annotations": []}]},
    ],
}
EVENTS: list[Json] = [
    {"type": "turn.start", "turn_id": "t-7"},
    {
        "type": "user.message",
        "content": "hi",
        "turn_id": "t-7",
        "pinned": True,
        "author": "ann",
        "metadata": {"k": [1]},
    },
    {"type": "agent.note", "content": "a note", "ttl_turns": 2, "ttl_seconds": 60},
    {"type": "announce", "content": [{"type": "text", "text": "busy"}], "supersedes": "busy"},
    {"type": "tool.call", "call_id": "n1", "tool": "read", "arguments": '{"path": "a'},
    {"type": "tool.call", "call_id": "n2", "tool": "read", "arguments": {"path": "b.csv"}},
    {"type": "tool.result", "call_id": "n2", "content": "1;2", "path": "b.csv", "mime": "text/csv", "is_error": True},
    {
        "type": "tool.result",
        "call_id": "n1",
        "content": "",
        "replacement": "gone",
        "occurred_at": "2026-01-05T08:00:00Z",
    },
    {"type": "turn.end"},
    {"type": "tools", "content": [{"name": "look"}]},
    {"type": "system.prompt", "content": "Another."},
    {"type": "tool.call", "call_id": "n3", "tool": "wait", "arguments": {}},
]
NOT_OF_THE_LOG = {"created_at", "occurred_at"}


async def of_every_kind(client: httpx.AsyncClient, session: str) -> list[Json]:
    """A log with everything that a log can hold."""
    await client.put(f"/v1/sessions/{session}", json={"model": "gpt-4o", "metadata": {"of": "us"}})
    prompts = [{"role": "system", "content": "You help."}, {"role": "developer", "content": "Be brief."}]
    body = {"format": "openai", "messages": prompts}
    (await client.post(f"/v1/sessions/{session}/messages", json=body)).raise_for_status()
    for format, messages in MESSAGES.items():
        body = {"format": format, "messages": messages}
        (await client.post(f"/v1/sessions/{session}/messages", json=body)).raise_for_status()
    (await client.post(f"/v1/sessions/{session}/events", json={"events": EVENTS})).raise_for_status()
    return await log(client, session)


async def test_a_neutral_export_gives_the_same_log_again(run: Run, client: httpx.AsyncClient, tmp_path: Path) -> None:
    original = await of_every_kind(client, "s")
    file = tmp_path / "s.jsonl"
    done = await run("export", "s", "-o", file)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert names(tmp_path) == ["s.jsonl"]
    assert await imported(run, file) == {"s": (len(original), 0)}  # where it came from, it is already
    assert await imported(run, file, "--session", "copy") == {"copy": (len(original), len(original))}

    def logged(events: list[Json]) -> list[Json]:
        return [{name: value for name, value in event.items() if name not in NOT_OF_THE_LOG} for event in events]

    copy = await log(client, "copy")
    assert logged(copy) == logged(original)
    for here, there in zip(copy, original, strict=True):
        assert here["occurred_at"] == there.get("occurred_at", there["created_at"])
    (line,), (again,) = told(Result(0, file.read_text(encoding="utf-8"), "")), await exported(run, "copy")
    assert again == line | {"id": "copy"}
    assert (line["model"], line["metadata"]) == ("gpt-4o", {"of": "us"})
    for format in (*MESSAGES, "blocks"):
        asked = {"format": format, "max_tokens": 60_000}
        contexts = [(await client.get(f"/v1/sessions/{one}/context", params=asked)).json() for one in ("s", "copy")]
        assert contexts[0]["sha256"] == contexts[1]["sha256"]


@pytest.mark.parametrize("format", [*MESSAGES])
async def test_any_log_comes_out_in_any_format_and_what_does_not_is_named(
    run: Run, client: httpx.AsyncClient, format: str
) -> None:
    seqs = {event.get("call_id"): event["seq"] for event in reversed(await of_every_kind(client, "s"))}
    done = await run("export", "s", "--format", format)
    assert done.returncode == 0
    (document,) = told(done)
    shown = json.dumps(document, ensure_ascii=False)
    assert all(words in shown for words in ("Another.", "ünïcödé 🐈", "I look.", "a.txt", "a note"))
    assert "You help." not in shown
    said = done.stderr.splitlines()
    assert f"palimpsest: session s: event {seqs['n3']} without a result: shown with one that says so" in said
    assert "palimpsest: session s: events 1, 2 left out: a later system prompt or tool list took its place" in said
    thought, spoken = seqs["t1"] - 1, seqs["r1"] - 2
    foreign = {"openai": [thought, spoken], "anthropic": [spoken], "openai-responses": [thought]}[format]
    events = f"event{'s' if len(foreign) > 1 else ''} {', '.join(map(str, foreign))}"
    assert f"palimpsest: session s: reasoning of {events} left out: only its own provider reads it" in said
    assert any("data of event" in line for line in said) == (format != "openai-responses")


async def test_erased_words_stay_erased(run: Run, client: httpx.AsyncClient) -> None:
    await client.post("/v1/sessions/s/events", json={"events": [{"type": "user.message", "content": "my secret"}]})
    assert (await client.delete("/v1/sessions/s/events/1")).status_code == 204
    done = await run("export", "s")
    assert "secret" not in done.stdout
    assert done.stderr.endswith("only the notice of that is written: events 1\n")


# A folder of a coding agent's logs


MAIN, OTHER = "0a1b2c3d-0000-4000-8000-000000000001", "0a1b2c3d-0000-4000-8000-000000000002"


def turn(number: int, **more: object) -> str:
    """A question, a call, its result and an answer, as an agent logs them."""
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
    """A folder as an agent fills it: two projects, sub-agents of every age, and files that are no sessions."""
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


async def test_people_see_what_became_of_each_file_and_the_others_go_on(run: Run, projects: Path) -> None:
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


async def test_what_the_server_refuses_leaves_no_session_behind(
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
        (("import", SAMPLES.parent / "unit" / "formats"), "there is no JSONL file in"),
        (("import", SAMPLES / "none.json"), "does not exist"),
        (("export", "a", "b", "--format", "openai"), "one session a file in the format openai"),
        (("export", "a", "--format", "blocks"), "blocks"),
    ],
)
async def test_what_cannot_be_meant_sends_nothing(run: Run, arguments: tuple[str | Path, ...], says: str) -> None:
    done = await run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr


async def test_a_session_that_is_not_there_writes_nothing(run: Run, tmp_path: Path) -> None:
    done = await run("export", "nobody", "-o", tmp_path / "out.jsonl")
    assert (done.returncode, done.stderr) == (1, "palimpsest: not-found: there is no session 'nobody'\n")
    assert not names(tmp_path)


async def test_an_import_waits_when_it_is_too_fast(database_url: str, tmp_path: Path) -> None:
    file = tmp_path / "s.jsonl"
    say = [{"role": "user", "content": str(number)} for number in range(1, 1_050)]
    file.write_text(lines({"id": "s", "messages": say}))
    async with serving(Settings(tenant_events_per_second=100), database_url) as url:
        done = await command("import", file, settings={"URL": url})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("s: 1,049 events, 1,049 new\n")
