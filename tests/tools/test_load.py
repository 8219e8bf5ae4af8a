"""Recordings in each input format, and the errors on text that is none."""

import json
from pathlib import Path

import pytest

from palimpsest_tools.recordings.agent_log import started_by
from palimpsest_tools.recordings.files import decode, parse
from palimpsest_tools.recordings.recording import (
    AppendEvents,
    AppendMessages,
    MalformedRecording,
    ModelCall,
    RecordedUsage,
    Recording,
    events_of,
)
from tests.tools.logs import lines, log_line, result, text, use

SAMPLES = Path(__file__).parents[1] / "samples"


def one(text: str) -> Recording:
    (recording,) = parse(text, "sample")
    return recording


def error_of(text: str) -> tuple[int | None, str]:
    with pytest.raises(MalformedRecording) as caught:
        parse(text, "sample")
    return caught.value.line, caught.value.detail


def message_of(role: str, content: object, **more: object) -> dict[str, object]:
    return {"role": role, "content": content, **more}


# Neutral sessions


def session(*messages: object, **more: object) -> dict[str, object]:
    return {"id": "s", "system": None, "tools": None, "messages": list(messages), "meta": {}, **more}


def test_a_neutral_session_becomes_events_with_a_call_before_each_assistant_message() -> None:
    call = {"id": "c1", "name": "read", "arguments": '{"p": 1}'}
    recording = one(
        lines(
            session(
                message_of("user", "hi"),
                message_of("assistant", "", tool_calls=[call]),
                message_of("tool", "42", tool_call_id="c1"),
                message_of("assistant", "done"),
                system="be brief",
                tools=[{"name": "read"}],
                meta={"ts": [10, 12.5, 13, None]},
            )
        )
    )
    assert recording.head() == (
        {"type": "system.prompt", "id": "system", "content": "be brief"},
        {"type": "tools", "id": "tools", "content": [{"name": "read"}]},
    )
    assert recording.steps == (
        AppendEvents(({"type": "user.message", "content": "hi", "id": "m0.0"},), (10,)),
        ModelCall(10),
        AppendEvents(
            (
                {"type": "tool.call", "call_id": "c1", "tool": "read", "arguments": '{"p": 1}', "id": "m1.0"},
                {"type": "tool.result", "call_id": "c1", "content": "42", "id": "m2.0"},
            ),
            (12.5, 13),
        ),
        ModelCall(13),
        AppendEvents(({"type": "assistant.message", "content": "done", "id": "m3.0"},)),
    )
    assert (recording.id, recording.format, recording.calls) == ("s", None, 2)


def test_call_times_never_go_back() -> None:
    messages = [
        message_of("user", "a"),
        message_of("assistant", "b"),
        message_of("user", "c"),
        message_of("assistant", "d"),
    ]
    recording = one(lines(session(*messages, meta={"ts": [50, 51, 40, 41]})))
    assert [step.at for step in recording.steps if isinstance(step, ModelCall)] == [50, 51]


def test_no_call_where_nothing_could_have_been_sent() -> None:
    recording = one(
        lines(session(message_of("assistant", "hello"), message_of("user", "hi"), message_of("assistant", "so?")))
    )
    assert [type(step).__name__ for step in recording.steps] == ["AppendEvents", "ModelCall", "AppendEvents"]


def test_several_neutral_sessions_and_blank_lines() -> None:
    text = lines(session(message_of("user", "a"))) + "\n" + lines(session(message_of("user", "b"), id="t"))
    assert [recording.id for recording in parse(text, "sample")] == ["s", "t"]


@pytest.mark.parametrize(
    ("second", "detail"),
    [
        ("{not json", "not JSON"),
        ("[]", "a session must be an object, not a list"),
        (lines(session("hi")), "messages[0] must be an object, not a string"),
        (lines(session(message_of("wizard", "hi"))), "messages[0].role 'wizard' is not a known role"),
        (lines(session(message_of("user", None))), "messages[0].content must be a list, not null"),
        (lines(session(message_of("tool", "x"))), "messages[0].tool_call_id must be a non-empty string, not null"),
        (lines(session(message_of("assistant", "", tool_calls=[{"id": "c"}]))), "tool_calls[0].name must be"),
        (lines(session(message_of("user", "a"), meta={"ts": []})), "meta.ts must hold one time"),
        (lines(session(message_of("user", "a"), meta={"ts": ["noon"]})), "epoch seconds, not a string"),
        ('{"id": "s", "messages": NaN}', "NaN is not a JSON value"),
    ],
)
def test_a_malformed_session_names_its_line(second: str, detail: str) -> None:
    line, message = error_of(lines(session(message_of("user", "fine"))) + second)
    assert line == 2
    assert detail in message


# OpenAI and Anthropic messages


def test_openai_messages_as_a_bare_list() -> None:
    messages = [
        message_of("system", "be brief"),
        message_of("user", "hi"),
        message_of("assistant", None, tool_calls=[{"id": "c"}]),
    ]
    recording = one(json.dumps(messages, indent=2))
    assert (recording.format, recording.system, recording.id) == ("openai", "be brief", "sample")
    assert recording.steps == (
        AppendMessages("openai", (messages[1],)),
        ModelCall(None),
        AppendMessages("openai", (messages[2],)),
    )


@pytest.mark.parametrize(
    "document",
    [
        {"system": "be brief", "messages": [message_of("user", "hi")]},
        {"messages": [message_of("user", "hi")], "tools": [{"name": "read", "input_schema": {}}]},
        [message_of("user", [{"type": "tool_result", "tool_use_id": "a"}])],
    ],
)
def test_anthropic_messages_are_recognized_by_their_own_fields(document: object) -> None:
    assert one(json.dumps(document)).format == "anthropic"


def test_a_plain_conversation_counts_as_openai() -> None:
    assert one(json.dumps({"messages": [message_of("user", "hi")]})).format == "openai"


@pytest.mark.parametrize(
    ("text", "line", "detail"),
    [
        ("", None, "the file is empty"),
        ('[\n {"role": "user",\n  oops}]', 3, "not JSON"),
        ("[]", None, "messages is empty"),
        ('"text"', None, "the document must be an object, not a string"),
        (json.dumps([message_of("user", 3)]), None, "messages[0].content must be a list, not a number"),
        (json.dumps([message_of("user", [{"text": "a"}])]), None, "messages[0].content[0].type must be"),
        (json.dumps([message_of("tool", "a")]), None, "messages[0].tool_call_id must be"),
        (json.dumps({"system": "x", "messages": [message_of("tool", "a")]}), None, "no role of anthropic messages"),
    ],
)
def test_a_malformed_document_names_the_position(text: str, line: int | None, detail: str) -> None:
    found, message = error_of(text)
    assert found == line
    assert detail in message


def test_bytes_that_are_no_text_name_their_line() -> None:
    with pytest.raises(MalformedRecording) as caught:
        decode(b"one\ntwo\n\xff")
    assert caught.value.line == 3
    assert decode(b"\xef\xbb\xbf[]") == "[]"


# A coding agent's log


def messages_of(recording: Recording) -> list[tuple[object, object]]:
    appended = (step for step in recording.steps if isinstance(step, AppendMessages))
    return [(message["role"], message["content"]) for step in appended for message in step.messages]


def test_lines_of_one_assistant_message_are_joined_and_results_follow_in_call_order() -> None:
    recording = one(
        lines(
            log_line("user", "go"),
            log_line("assistant", [use("a")], key="m1"),
            log_line("user", [result("a")]),
            log_line("assistant", [use("b")], key="m1"),
            log_line("user", [text("and?"), result("b")]),
            log_line("assistant", [text("done")], key="m2"),
        )
    )
    assert messages_of(recording) == [
        ("user", [text("go")]),
        ("assistant", [use("a"), use("b")]),
        ("user", [result("a"), result("b"), text("and?")]),
        ("assistant", [text("done")]),
    ]
    assert (recording.calls, recording.notes) == (2, ())


def test_sidechains_meta_lines_copies_and_other_types_are_skipped() -> None:
    recording = one(
        lines(
            {"type": "summary", "summary": "s", "leafUuid": "x"},
            log_line("user", "caveat", isMeta=True),
            log_line("user", "go", uuid="1", timestamp="2026-01-02T03:04:05.500Z"),
            log_line("user", "go", uuid="1"),
            log_line("user", "aside", isSidechain=True),
            log_line("assistant", [text("API error")], isApiErrorMessage=True),
            log_line("user", "the story so far", isCompactSummary=True),
            {"type": "system", "subtype": "local_command"},
            log_line("assistant", [text("done")], key="m2"),
        )
    )
    assert messages_of(recording) == [("user", [text("go")]), ("assistant", [text("done")])]
    assert [step.at for step in recording.steps if isinstance(step, ModelCall)] == [1767323045.5]


def test_sub_agents_are_sessions_of_their_own_where_they_are_wanted() -> None:
    log = lines(
        log_line("user", "go", uuid="1"),
        log_line("user", "look", uuid="s1", parentUuid=None, isSidechain=True),
        log_line("user", "seek", uuid="t1", parentUuid=None, isSidechain=True),
        log_line("assistant", [text("found")], key="m2", uuid="t2", parentUuid="t1", isSidechain=True),
        log_line("assistant", [text("seen")], key="m1", uuid="s2", parentUuid="s1", isSidechain=True),
        log_line("user", "dig", uuid="u1", isSidechain=True, agentId="a9"),
        log_line("assistant", [text("done")], key="m3", uuid="2"),
    )
    told = {
        recording.id: [content[0]["text"] for _, content in messages_of(recording)]  # type: ignore[index]
        for recording in parse(log, "s", sub_agents=True)
    }
    assert told == {
        "s": ["go", "done"],
        "s.agent-1": ["look", "seen"],
        "s.agent-2": ["seek", "found"],
        "s.agent-a9": ["dig"],
    }
    assert [recording.id for recording in parse(log, "s")] == ["s"]
    own = lines(log_line("user", "dig", isSidechain=True, agentId="a9", sessionId="p"))
    assert [recording.id for recording in parse(own, "agent-a9")] == ["agent-a9"]
    assert started_by(own) == "p"
    assert started_by(log) is None


def test_the_model_is_the_last_that_really_wrote() -> None:
    answers = [("claude-a", "m1"), ("claude-b", "m2"), ("<synthetic>", "m3")]
    log = [log_line("user", "go")]
    for model, key in answers:
        answer = log_line("assistant", [text("x")], key=key)
        log.append({**answer, "message": {**answer["message"], "model": model}})  # type: ignore[dict-item]
    assert one(lines(*log)).model == "claude-b"
    assert one(json.dumps({"model": "gpt-4o", "messages": [message_of("user", "hi")]})).model == "gpt-4o"


def test_events_of_a_log_are_read_unchanged_with_a_call_before_each_response() -> None:
    events = [
        {"type": "system.prompt", "content": "be brief"},
        {"type": "user.message", "content": "hi", "occurred_at": "2026-01-02T03:04:05Z", "pinned": True},
        {"type": "assistant.message", "content": "I look."},
        {"type": "tool.call", "call_id": "c", "tool": "look"},
        {"type": "tool.result", "call_id": "c", "content": "x"},
        {"type": "assistant.message", "content": "done", "occurred_at": "long ago"},
    ]
    recording = one(lines({"id": "s", "model": "gpt-4o", "metadata": {"k": 1}, "events": events}))
    assert [type(step).__name__ for step in recording.steps] == ["AppendEvents", "ModelCall"] * 2 + ["AppendEvents"]
    assert list(events_of(recording)) == events
    assert (recording.model, recording.metadata) == ("gpt-4o", {"k": 1})
    assert [step.at for step in recording.steps if isinstance(step, ModelCall)] == [1767323045, 1767323045]


def test_an_interrupted_call_is_answered_and_an_orphan_left_out() -> None:
    recording = one(
        lines(
            log_line("user", "go"),
            log_line("assistant", [use("a")], key="m1"),
            log_line("user", [text("stop"), result("ghost")]),
            log_line("assistant", [use("b")], key="m2"),
            log_line("assistant", [use("c")], key="m3"),
        )
    )
    roles = [role for role, _ in messages_of(recording)]
    assert roles == ["user", "assistant", "user", "assistant", "user", "assistant"]
    answers = [content for _, content in messages_of(recording)][2::2]
    assert [part["type"] for part in answers[0]] == ["tool_result", "text"]  # type: ignore[attr-defined]
    assert answers[0][0]["is_error"] is True  # type: ignore[index]
    assert len(recording.notes) == 2
    assert recording.notes[0].startswith("2 tool call(s)")


def test_usage_is_the_last_of_a_message_and_whole_until_the_agent_compacts() -> None:
    def answer(key: str, **usage: int) -> dict[str, object]:
        line = log_line("assistant", [text("x")], key=key)
        return {**line, "message": {**line["message"], "usage": usage}}  # type: ignore[dict-item]  # JSON

    cached = {"cache_read_input_tokens": 50, "cache_creation_input_tokens": 40}
    recording = one(
        lines(
            log_line("user", "go"),
            answer("m1", input_tokens=10, output_tokens=1, **cached),
            answer("m1", input_tokens=10, output_tokens=7, **cached),
            log_line("user", "so far", isCompactSummary=True, uuid="s"),
            log_line("user", "on", uuid="u"),
            answer("m2", input_tokens=9),
        )
    )
    calls = [step for step in recording.steps if isinstance(step, ModelCall)]
    assert [call.usage for call in calls] == [RecordedUsage(100, 50, 40, 7), RecordedUsage(9)]
    assert [call.whole for call in calls] == [True, False]
    assert recording.notes[0].startswith("compacted once by the agent itself")


def test_usage_has_the_part_that_the_cache_keeps_for_an_hour() -> None:
    line = log_line("assistant", [text("x")], key="m1")
    cached = {"cache_creation_input_tokens": 40, "cache_creation": {"ephemeral_1h_input_tokens": 30}}
    answered = {**line, "message": {**line["message"], "usage": {"input_tokens": 1, **cached}}}  # type: ignore[dict-item]
    (call,) = [step for step in one(lines(log_line("user", "go"), answered)).steps if isinstance(step, ModelCall)]
    assert call.usage == RecordedUsage(41, write=40, write_hour=30)
    messages = [message_of(role, "x") for role in ("user", "assistant", "user", "assistant")]
    used = [{"i": 1, "in": 1, "read": 2, "write": 3, "write_1h": 3, "out": 4}, {"i": 3, "in": 5}]
    recording = one(lines(session(*messages, meta={"usage": used, "compactions": [{"at": 2}]})))
    calls = [step for step in recording.steps if isinstance(step, ModelCall)]
    assert [call.usage for call in calls] == [RecordedUsage(6, 2, 3, 4, 3), RecordedUsage(5)]
    assert [call.whole for call in calls] == [True, False]


@pytest.mark.parametrize(
    ("bad", "detail"),
    [
        ("{", "not JSON"),
        ("3", "a line must be an object, not a number"),
        (json.dumps({"uuid": "x"}), "type must be a non-empty string, not null"),
        (json.dumps({"type": "user"}), "message must be an object, not null"),
        (lines(log_line("user", "x", timestamp="yesterday")), "not an RFC 3339 time"),
        (lines(log_line("user", [{"type": "tool_result"}])), "tool_result's id must be"),
        (lines({"type": "user", "message": message_of("assistant", "x")}), "a line of type user holds"),
    ],
)
def test_a_malformed_log_line_names_its_number(bad: str, detail: str) -> None:
    line, message = error_of(lines({"type": "summary"}, log_line("user", "go")) + bad)
    assert line == 3
    assert detail in message


def test_a_log_without_a_conversation_is_refused() -> None:
    assert error_of(lines({"type": "summary", "summary": "s"}))[1] == "no message of a conversation in it"


# Our samples


@pytest.mark.parametrize(
    ("name", "formats", "calls"),
    [
        ("openai_messages.json", ["openai"], [11]),
        ("anthropic_messages.json", ["anthropic"], [11]),
        ("agent_log.jsonl", ["anthropic"], [11]),
        ("neutral.jsonl", [None, None], [11, 9]),
        ("handover.jsonl", [None], [18]),
    ],
)
def test_the_samples_load(name: str, formats: list[str | None], calls: list[int]) -> None:
    recordings = parse(decode((SAMPLES / name).read_bytes()), name)
    assert [recording.format for recording in recordings] == formats
    assert [recording.calls for recording in recordings] == calls


# Gemini's contents


def test_contents_of_gemini_are_its_messages() -> None:
    contents = [
        {"role": "user", "parts": [{"text": "go"}]},
        {"role": "model", "parts": [{"functionCall": {"name": "read", "args": {}}, "thoughtSignature": "c2ln"}]},
        {"role": "user", "parts": [{"functionResponse": {"name": "read", "response": {"output": "x"}}}]},
    ]
    tools = [{"functionDeclarations": [{"name": "read"}]}]
    system = {"parts": [{"text": "Help."}, {"text": "Be brief."}]}
    found = one(json.dumps({"contents": contents, "systemInstruction": system, "tools": tools}))
    assert (found.format, found.system, found.tools) == ("gemini", "Help.\nBe brief.", tuple(tools))
    assert [type(step) for step in found.steps] == [AppendMessages, ModelCall, AppendMessages]
    appended = [step.messages for step in found.steps if isinstance(step, AppendMessages)]
    assert appended == [tuple(contents[:1]), tuple(contents[1:])]
    assert error_of(json.dumps({"contents": []})) == (None, "contents is empty")
    assert "contents[0].parts" in error_of(json.dumps({"contents": [{"role": "user"}]}))[1]


def test_a_time_outside_the_calendar_is_no_time() -> None:
    messages = (message_of("user", "a"), message_of("assistant", "b"))
    recording = one(lines(session(*messages, meta={"ts": [1e300, -1e12]})))
    assert all(event.get("occurred_at") is None for event in events_of(recording))
    assert [step.at for step in recording.steps if isinstance(step, ModelCall)] == [None]
