"""Recordings of coding agents other than Claude Code, read with tolerance for the lines of other versions."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from palimpsest_tools.recordings.files import decode, parse
from palimpsest_tools.recordings.recording import (
    AppendEvents,
    AppendMessages,
    ModelCall,
    NothingRecorded,
    RecordedUsage,
    Recording,
    events_of,
)
from tests.tools.logs import lines

SAMPLES = Path(__file__).parents[1] / "samples"


def one(text: str) -> Recording:
    (recording,) = parse(text, "sample")
    return recording


def sample(name: str) -> Recording:
    return one(decode((SAMPLES / name).read_bytes()))


def appended(recording: Recording) -> list[Mapping[str, Any]]:
    """Return all messages or events of a recording."""

    def found() -> Iterator[Mapping[str, Any]]:
        for step in recording.steps:
            match step:
                case AppendMessages(_, messages):
                    yield from messages
                case AppendEvents(events):
                    yield from events

    return list(found())


def calls(recording: Recording) -> list[ModelCall]:
    return [step for step in recording.steps if isinstance(step, ModelCall)]


def shape(recording: Recording) -> str:
    """Return a letter for each step: a call, or an append."""
    return "".join("c" if isinstance(step, ModelCall) else "a" for step in recording.steps)


# Codex


def rollout(*payloads: tuple[str, object], at: str = "2026-06-02T09:00:00Z") -> str:
    return lines(*({"timestamp": at, "type": type, "payload": payload} for type, payload in payloads))


def item(type: str, **fields: object) -> tuple[str, object]:
    return "response_item", {"type": type, **fields}


def said(role: str, text: str) -> tuple[str, object]:
    kind = "output_text" if role == "assistant" else "input_text"
    return item("message", role=role, content=[{"type": kind, "text": text}])


def used(input: int, total: int | None = None, **more: int) -> tuple[str, object]:
    last = {"input_tokens": input, **more}
    info = {"last_token_usage": last} | ({} if total is None else {"total_token_usage": {"input_tokens": total}})
    return "event_msg", {"type": "token_count", "info": info}


def test_the_sample_of_codex_is_read_whole() -> None:
    found = sample("codex_rollout.jsonl")
    assert (found.format, found.model, found.calls) == ("openai-responses", "gpt-5.4-codex", 10)
    assert str(found.system).startswith("You are a coding agent that works in a terminal.")
    kinds = {str(message["type"]) for message in appended(found)}
    assert kinds == {
        *("message", "reasoning", "function_call", "function_call_output", "custom_tool_call"),
        *("custom_tool_call_output", "tool_search_call", "tool_search_output"),
    }
    assert found.notes == (
        "compacted once by the agent itself; the log holds everything, and not the agent's summary",
        "1 tool call(s) without a recorded result, answered as aborted",
        "1 tool result(s) without a recorded call, left out",
        "not understood: 5 lines of 4 kinds (event_msg/sonar_ping 2, harbour_log 1, response_item/riddle 1,"
        " no JSON object 1)",
    )
    models = [call.model for call in calls(found)]
    assert models == ["gpt-5.3-codex"] * 7 + ["gpt-5.4-codex"] * 3
    assert [call.whole for call in calls(found)] == [True] * 8 + [False] * 2
    usages = [call.usage for call in calls(found)]
    assert usages[0] == RecordedUsage(9120, 7680, None, 142)
    assert [usage and usage.input for usage in usages] == [
        *(9120, 11480, 11794, 11902, 12110, 12190, 12260, 12410, 9870, 10060)
    ]


def test_codex_items_are_kept_as_they_were_sent_with_their_times() -> None:
    call = {"name": "exec", "arguments": '{"cmd": "ls"}', "call_id": "c1"}
    text = rollout(
        ("session_meta", {"id": "s", "base_instructions": {"text": "Be precise."}}),
        ("session_meta", {"id": "parent", "base_instructions": {"text": "Other."}}),
        said("developer", "rules"),
        ("turn_context", {"collaboration_mode": {"settings": {"model": "gpt-5"}}}),
        said("user", "list"),
        item("reasoning", summary=[], content=None, encrypted_content="x"),
        item("function_call", **call),
        item("function_call_output", call_id="c1", output={"content": "a.txt", "success": True}),
    )
    found = one(text)
    assert (found.system, found.model, shape(found)) == ("Be precise.", "gpt-5", "aca")
    assert appended(found)[2:] == [
        {"type": "reasoning", "summary": [], "encrypted_content": "x"},
        {"type": "function_call", **call},
        {"type": "function_call_output", "call_id": "c1", "output": "a.txt"},
    ]
    events = list(events_of(found))
    kinds = ["system.prompt", "system.prompt", "user.message", "assistant.message", "tool.call", "tool.result"]
    assert [event["type"] for event in events] == kinds
    assert {event.get("occurred_at") for event in events[1:]} == {"2026-06-02T09:00:00Z"}


def test_a_token_count_is_of_the_call_before_it_and_ends_its_response() -> None:
    found = one(
        rollout(
            said("user", "hi"),
            ("event_msg", {"type": "token_count", "info": None}),
            said("assistant", "One."),
            used(100, 100, cached_input_tokens=60, output_tokens=5),
            used(100, 100, cached_input_tokens=60, output_tokens=5),
            said("assistant", "Two."),
            used(110, 210),
            said("user", "and?"),
            said("assistant", "Three."),
            used(0, 210),
        )
    )
    assert [call.usage for call in calls(found)] == [RecordedUsage(100, 60, None, 5), RecordedUsage(110), None]
    assert shape(found) == "acacaca"[: len(found.steps)]


def test_usage_after_a_compaction_or_a_rollback_is_not_of_the_whole_log() -> None:
    for cut in (("compacted", {"message": ""}), ("event_msg", {"type": "thread_rolled_back", "num_turns": 1})):
        found = one(rollout(said("user", "a"), said("assistant", "b"), cut, said("user", "c"), said("assistant", "d")))
        assert [call.whole for call in calls(found)] == [True, False]
        assert len(found.notes) == 1


def test_a_codex_call_without_output_is_aborted_when_the_next_response_begins() -> None:
    ask = item("custom_tool_call", name="apply_patch", call_id="c1", input="x")
    found = one(rollout(said("user", "go"), ask, said("user", "stop"), said("assistant", "So.")))
    assert appended(found)[3] == {"type": "custom_tool_call_output", "call_id": "c1", "output": "aborted"}
    still_open = one(rollout(said("user", "go"), ask))
    assert (len(appended(still_open)), still_open.notes) == (2, ())


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ('{"timestamp": 3, "type": "response_item", "payload": {"type": "message", "role": "wizard"}}', "message"),
        ('{"type": "response_item", "payload": {"type": "function_call", "call_id": "c"}}', "function_call"),
        ('{"type": "response_item", "payload": {"type": "function_call", "name": "x", "call_id": 3}}', "function_call"),
        ('{"type": "response_item", "payload": {"type": "custom_tool_call", "call_id": "c", "name": 1}}', "tool_call"),
        ('{"type": "response_item", "payload": 3}', "response_item"),
        ('{"payload": {}}', "without a type"),
        ("[1]", "no JSON object"),
        ('{"type": "event_msg", "payl', "no JSON object"),
    ],
)
def test_a_line_of_codex_that_is_not_understood_is_counted(line: str, kind: str) -> None:
    found = one(rollout(said("user", "hi")) + line + "\n" + rollout(said("assistant", "ho")))
    assert len(appended(found)) == 2
    (note,) = found.notes
    assert note.startswith("not understood: 1 line of 1 kind (")
    assert note.endswith(f"{kind} 1)")


# Gemini CLI


def test_the_sample_of_gemini_is_read_whole() -> None:
    found = sample("gemini_chat.json")
    assert (found.format, found.system, found.model) == ("gemini", None, "gemini-3-flash-preview")
    assert found.notes == (
        "1 tool call(s) without a recorded result, answered as interrupted",
        "not understood: 1 message of 1 kind (message/tide_table 1)",
    )
    usages = [call.usage for call in calls(found)]
    assert usages[:2] == [RecordedUsage(8420, 0, None, 241), RecordedUsage(11320, 8064, None, 48)]
    assert [call.model for call in calls(found)] == ["gemini-3-pro-preview"] * 4 + ["gemini-3-flash-preview"] * 2
    roles = [message["role"] for message in appended(found)]
    assert roles == ["user", "user", *("model", "user") * 4, "user", *("model", "user"), "model"]
    results = [event for event in events_of(found) if event["type"] == "tool.result"]
    assert [bool(event.get("is_error")) for event in results] == [False, False, True, True, False, True]


def test_the_sample_of_gemini_in_json_lines_is_read_whole() -> None:
    found = sample("gemini_lines.jsonl")
    assert found.notes == (
        "compacted once by the agent itself; the log holds everything, and not the agent's summary",
        "2 messages taken back by the user, left out",
        "not understood: 2 lines of 2 kinds ($ebb 1, no JSON object 1)",
    )
    assert [message["role"] for message in appended(found)] == ["user", "model"] * 4
    assert [call.whole for call in calls(found)] == [True, True, True, False]
    texts = json.dumps(appended(found))
    assert "poem" not in texts
    assert "state_snapshot" not in texts
    assert texts.count("functionResponse") == 1


def chat(*messages: Mapping[str, object]) -> str:
    return json.dumps({"sessionId": "s", "projectHash": "p", "messages": list(messages)}, indent=1)


def test_calls_of_gemini_are_signed_and_answered_and_thoughts_are_not_sent() -> None:
    call = {"id": "c1", "name": "read", "args": {"p": 1}, "result": [{"functionResponse": {"name": "other"}}, {"x": 1}]}
    found = one(
        chat(
            {"id": "1", "type": "user", "content": "go", "timestamp": "2026-06-03T14:00:00Z"},
            {
                "id": "2",
                "type": "gemini",
                "content": [{"text": "hm", "thought": True}, "I read."],
                "thoughts": [{"subject": "Reading"}],
                "toolCalls": [call, {"id": "c2", "name": "read", "status": "error"}, {"name": "no id"}],
            },
            {"id": "3", "type": "gemini", "content": "", "toolCalls": [{"id": "c3", "name": "read"}]},
        )
    )
    signature = {"thoughtSignature": "skip_thought_signature_validator"}
    _, asked, answered, running = appended(found)
    assert asked["parts"] == [
        {"text": "I read."},
        {"functionCall": {"id": "c1", "name": "read", "args": {"p": 1}}, **signature},
        {"functionCall": {"id": "c2", "name": "read", "args": {}}},
    ]
    assert answered["parts"] == [
        {"functionResponse": {"id": "c1", "name": "read", "response": {}}},
        {"x": 1},
        {
            "functionResponse": {
                "id": "c2",
                "name": "read",
                "response": {"error": "(interrupted: no result was recorded)"},
            }
        },
    ]
    assert running["role"] == "model"


def test_a_call_that_gemini_logs_in_the_content_is_kept_with_its_signature() -> None:
    own = {"functionCall": {"id": "c1", "name": "read", "args": {}}, "thoughtSignature": "c2ln"}
    answer = {"functionResponse": {"id": "c1", "name": "read", "response": {"output": "x"}}}
    asked = {"id": "2", "type": "gemini", "content": [own]}
    sent = {"id": "3", "type": "user", "content": [answer, {"functionResponse": {"id": "ghost", "name": "y"}}]}
    for more in ({}, {"toolCalls": [{"id": "c1", "name": "read", "args": {}, "result": [answer]}]}):
        found = one(chat({"id": "1", "type": "user", "content": "go"}, {**asked, **more}, sent))
        assert [message["parts"] for message in appended(found)[1:]] == [[own], [answer]]


def test_a_history_that_gemini_replaces_gives_its_new_messages_only() -> None:
    first, second, third = ({"id": str(n), "type": "user", "content": f"say {n}"} for n in (1, 2, 3))
    head = {"sessionId": "s", "projectHash": "p", "startTime": "2026-06-03T14:00:00Z"}
    grown = one(lines(head, first, {"$set": {"messages": [first, second]}}))
    assert ([len(appended(grown)), grown.notes]) == [2, ()]
    summary = {"id": "9", "type": "user", "content": "so far"}
    short = one(lines(head, first, second, {"$set": {"messages": [summary, second, third]}}))
    assert [message["parts"][0]["text"] for message in appended(short)] == ["say 1", "say 2", "say 3"]
    assert len(short.notes) == 1


# opencode


def test_the_sample_of_opencode_is_read_whole() -> None:
    found = sample("opencode_export.json")
    assert (found.id, found.format, found.model) == ("ses_5f0b1tide0001", "anthropic", "claude-sonnet-4-5")
    assert found.notes == (
        "compacted once by the agent itself; the log holds everything, and not the agent's summary",
        "some results were cleared by the agent itself; the log holds them",
        "1 response that failed, left out",
        "1 tool call(s) without a recorded result, answered as interrupted",
        "not understood: 1 part of 1 kind (part/lighthouse 1)",
    )
    events = appended(found)
    assert Counter(str(event["type"]) for event in events) == {
        "user.message": 4,
        "assistant.message": 4,
        "tool.call": 5,
        "tool.result": 5,
    }
    kinds = [part["type"] for part in events[0]["content"]]
    assert kinds == ["text", "text", "text", "image_url"]
    assert "shown on the screen" not in json.dumps(events)
    assert "upside down; `chart` was repaired" not in json.dumps(events)
    assert len({event["id"] for event in events}) == len(events)
    assert [call.whole for call in calls(found)] == [True] * 5 + [False] * 2
    assert calls(found)[1].usage == RecordedUsage(15696, 13210, 2480, 120)
    times = [event["occurred_at"] for event in events_of(found)]
    assert times[:2] == ["2026-06-05T09:01:00Z", "2026-06-05T09:01:01.400000Z"]


def export(*messages: tuple[Mapping[str, object], list[Mapping[str, object]]]) -> str:
    return json.dumps({"info": {"id": "ses_1"}, "messages": [{"info": i, "parts": p} for i, p in messages]})


def test_each_step_of_a_response_is_a_call_and_its_results_follow_its_calls() -> None:
    def step(id: str, input: int) -> list[Mapping[str, object]]:
        state = {"status": "completed", "input": {"n": id}, "output": f"of {id}"}
        tokens = {"input": input, "output": 5, "total": input + 30, "cache": {"read": 10, "write": 0}}
        return [
            {"type": "step-start"},
            {"type": "text", "text": f"step {id}"},
            {"type": "tool", "callID": id, "tool": "look", "state": state},
            {"type": "text", "text": "while it runs"},
            {"type": "step-finish", "tokens": tokens},
        ]

    user = ({"role": "user"}, [{"type": "text", "text": "go"}])
    found = one(export(user, ({"role": "assistant", "providerID": "acme"}, step("a", 100) + step("b", 200))))
    assert (found.format, shape(found)) == ("openai", "acaca")
    kinds = [str(event["type"]) for event in appended(found)]
    assert kinds == ["user.message", *("assistant.message", "tool.call", "assistant.message", "tool.result") * 2]
    assert [call.usage for call in calls(found)] == [RecordedUsage(110, 10, 0, 20), RecordedUsage(210, 10, 0, 20)]


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        ({"type": "tool", "callID": "", "tool": "look"}, "part/tool"),
        ({"type": "text", "text": 3}, "part/text"),
        ({"text": "x"}, "part/None"),
    ],
)
def test_a_part_of_opencode_that_is_not_understood_is_counted(part: Mapping[str, object], kind: str) -> None:
    user = ({"role": "user"}, [{"type": "text", "text": "go"}])
    found = one(export(user, ({"role": "assistant"}, [part, {"type": "text", "text": "so"}])))
    assert len(appended(found)) == 2
    assert found.notes == (f"not understood: 1 part of 1 kind ({kind} 1)",)


def test_a_call_that_still_runs_at_the_end_of_an_export_is_open() -> None:
    user = ({"role": "user"}, [{"type": "text", "text": "go"}])
    asked = ({"role": "assistant"}, [{"type": "tool", "callID": "c", "tool": "look", "state": {"status": "running"}}])
    assert len(appended(one(export(user, asked)))) == 2
    assert appended(one(export(user, asked, user)))[2]["is_error"] is True


@pytest.mark.parametrize("text", [rollout(("session_meta", {"id": "s"})), chat(), chat({"type": "info"}), export()])
def test_a_log_without_a_conversation_is_refused(text: str) -> None:
    with pytest.raises(NothingRecorded, match="no message of a conversation in it"):
        parse(text, "sample")
