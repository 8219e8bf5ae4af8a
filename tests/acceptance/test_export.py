"""Export from a running server by the real command, whole and identical after an import."""

import json
from pathlib import Path

import httpx
import pytest

from tests.acceptance.transfers import SAMPLES, Json, Run, command, exported, imported, json_lines, log, names
from tests.support.processes import Result


@pytest.fixture
def run(server: str) -> Run:
    """Return a runner of commands that find the server by PALIMPSEST_URL."""
    return lambda *arguments: command(*arguments, settings={"URL": server})


@pytest.mark.parametrize("name", ["anthropic_messages", "openai_messages"])
async def test_a_conversation_is_exported_in_its_format_unchanged(run: Run, name: str) -> None:
    document = json.loads((SAMPLES / f"{name}.json").read_text(encoding="utf-8"))
    await imported(run, SAMPLES / f"{name}.json")
    (written,) = await exported(run, name, format=name.removesuffix("_messages"))
    assert written == document


async def test_an_openai_developer_prompt_is_exported_unchanged(run: Run, tmp_path: Path) -> None:
    prompts = [{"role": "developer", "content": "Help."}, {"role": "system", "content": "Briefly.", "name": "ann"}]
    later = [{"role": "user", "content": "hi"}, {"role": "developer", "content": "Now in verse."}]
    for number, messages in enumerate(([*prompts, *later], [*prompts[:1], *later], [*prompts[1:], *later], later)):
        file = tmp_path / f"s{number}.json"
        file.write_text(json.dumps(messages))
        assert await imported(run, file) == {f"s{number}": (len(messages), len(messages))}
        (written,) = await exported(run, f"s{number}", format="openai")
        assert written == {"messages": messages}
        answered = [*messages, {"role": "assistant", "content": "So"}]
        file.write_text(json.dumps(answered))
        done = await run("replay", file, "--json", "--share", "0.5")
        assert done.returncode == 0, done.stdout  # the log read back equals the expected events
        assert await imported(run, file) == {f"s{number}": (len(answered), 1)}


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
    """Create a log with every kind of content."""
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
    assert await imported(run, file) == {"s": (len(original), 0)}  # already present on the server it came from
    assert await imported(run, file, "--session", "copy") == {"copy": (len(original), len(original))}

    def logged(events: list[Json]) -> list[Json]:
        return [{name: value for name, value in event.items() if name not in NOT_OF_THE_LOG} for event in events]

    copy = await log(client, "copy")
    assert logged(copy) == logged(original)
    for here, there in zip(copy, original, strict=True):
        assert here["occurred_at"] == there.get("occurred_at", there["created_at"])
    (line,), (again,) = json_lines(Result(0, file.read_text(encoding="utf-8"), "")), await exported(run, "copy")
    assert again == line | {"id": "copy"}
    assert (line["model"], line["metadata"]) == ("gpt-4o", {"of": "us"})
    for format in (*MESSAGES, "blocks"):
        asked = {"format": format, "max_tokens": 60_000}
        contexts = [(await client.get(f"/v1/sessions/{one}/context", params=asked)).json() for one in ("s", "copy")]
        assert contexts[0]["sha256"] == contexts[1]["sha256"]


@pytest.mark.parametrize("format", [*MESSAGES])
async def test_any_log_is_exported_in_any_format_and_losses_are_named(
    run: Run, client: httpx.AsyncClient, format: str
) -> None:
    seqs = {event.get("call_id"): event["seq"] for event in reversed(await of_every_kind(client, "s"))}
    done = await run("export", "s", "--format", format)
    assert done.returncode == 0
    (document,) = json_lines(done)
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


async def test_a_session_that_is_not_there_writes_nothing(run: Run, tmp_path: Path) -> None:
    done = await run("export", "nobody", "-o", tmp_path / "out.jsonl")
    assert (done.returncode, done.stderr) == (1, "palimpsest: there is no session 'nobody'\n")
    assert not names(tmp_path)
