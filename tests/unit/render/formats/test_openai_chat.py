"""OpenAI's chat completions: fields that are kept or refused, and the form of other formats' events."""

from typing import Any

import pytest

from app.core.errors import InvalidMessage
from app.core.log.event import Block, Kind
from app.core.render.formats import FORMATS
from tests.support.validators import check_openai
from tests.unit.render.formats.layouts import call, layout_of_messages, request_of, result, round_trip, says, user

USER = {"role": "user", "content": "hi"}


def tool_call(call_id: str, **fields: Any) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "read", "arguments": "{}"}, **fields}


def answer(call_id: str, content: Any = "x") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def assistant(**fields: Any) -> dict[str, Any]:
    return {"role": "assistant", **fields}


CUSTOM = {"id": "a", "type": "custom", "custom": {"name": "patch", "input": "*** Begin", "x": 1}}
VENDORS = {"id": "a", "type": "builtin_function", "function": {"name": "$web", "arguments": "{}"}, "extra_content": {}}


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "developer", "content": [{"type": "text", "text": "d"}], "name": "n"}, USER],
        [USER, {"role": "system", "content": "mid"}, {"role": "developer", "content": "mid"}, USER],
        [{"role": "user", "name": "ann", "content": [{"type": "input_audio", "input_audio": {"data": "x"}}]}],
        [{"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}, {"type": "hologram", "x": [None]}]}],
        [USER, assistant(content="x", refusal=None, audio=None)],
        [USER, assistant(content=None, refusal="no")],
        [USER, assistant(content="", refusal="no")],
        [USER, assistant(refusal="no")],
        [USER, assistant(content=[{"type": "refusal", "refusal": "no"}]), USER],
        [USER, assistant(content=None, audio={"id": "audio_1"}), USER],
        [USER, assistant(content="r", reasoning_content="hm")],
        [USER, assistant(content=None, function_call={"name": "f", "arguments": "{}"})],
        [USER, {"role": "function", "name": "f", "content": "r"}],
        [USER, assistant(content=None, tool_calls=[tool_call("a")]), answer("a", "")],
        [USER, assistant(content="", tool_calls=[tool_call("a")]), answer("a", [])],
        [USER, assistant(content="\n\n", tool_calls=[tool_call("a")]), answer("a", " ")],
        [USER, assistant(tool_calls=[tool_call("a")]), answer("a", [{"type": "text", "text": "y"}])],
        [USER, assistant(content="x"), assistant(content=None, tool_calls=[tool_call("a")]), answer("a")],
        [
            USER,
            assistant(content="x", tool_calls=[tool_call("a"), tool_call("b", extra_content={"x": 1})]),
            answer("b"),
            answer("a"),
            USER,
        ],
        [USER, assistant(content=None, tool_calls=[CUSTOM]), answer("a")],
        [USER, assistant(content=None, tool_calls=[{"id": "a", "function": {"name": "s", "arguments": ""}}])],
        [USER, assistant(content=None, tool_calls=[tool_call("a")]), {**answer("a"), "name": "read"}],
    ],
)
def test_messages_come_back_as_they_were(messages: list[dict[str, Any]]) -> None:
    assert round_trip("openai", messages) == messages


def test_a_vendors_own_kind_of_call_comes_back_with_a_legal_name() -> None:
    messages = [USER, assistant(content=None, tool_calls=[VENDORS]), answer("a")]
    back = round_trip("openai", messages)[1]["tool_calls"][0]
    assert back == {**VENDORS, "function": {"name": "_web", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("", "hello"),
        ("role", {"role": "robot", "content": "x"}),
        ("role", {"content": "x"}),
        ("content", {"role": "user"}),
        ("content", {"role": "user", "content": 7}),
        ("content", {"role": "user", "content": ["x"]}),
        ("content", {"role": "user", "content": [{"type": 7, "text": "x"}]}),
        ("tool_call_id", {"role": "tool", "content": "x"}),
        ("content", {"role": "tool", "tool_call_id": "a"}),
        ("tool_calls", assistant(content=None, tool_calls={"id": "a"})),
        ("id", assistant(content=None, tool_calls=[tool_call("")])),
        ("function", assistant(content=None, tool_calls=[{"id": "a", "type": "function"}])),
        ("name", assistant(content=None, tool_calls=[tool_call("a", function={"arguments": "{}"})])),
        ("custom", assistant(content=None, tool_calls=[{"id": "a", "type": "custom"}])),
        ("input", assistant(content=None, tool_calls=[{**CUSTOM, "custom": {"name": "p", "input": 5}}])),
    ],
)
def test_a_malformed_message_is_named(field: str, message: Any) -> None:
    with pytest.raises(InvalidMessage) as refused:
        FORMATS["openai"].read([USER, message])
    assert refused.value.fields == {"index": 1, "field": field}


def test_blocks_that_the_provider_would_refuse_are_left_out_or_named() -> None:
    blank = {"role": "user", "content": [{"type": "text", "text": " "}, {"type": "text", "text": "a"}]}
    messages = [{"role": "user", "content": ""}, assistant(content=None), blank, assistant(content="x", tool_calls=[])]
    assert round_trip("openai", messages) == [
        {"role": "user", "content": "(empty)"},
        assistant(content="(empty)"),
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        assistant(content="x"),
    ]


def test_one_message_of_text_and_calls_is_several_events_with_its_fields_on_the_first() -> None:
    message = assistant(content="Let me see.", name="bo", tool_calls=[tool_call("a"), tool_call("b")])
    events = FORMATS["openai"].read([USER, message])
    assert [event["type"] for event in events] == ["user.message", "assistant.message", "tool.call", "tool.call"]
    assert [event["native"].get("head") for event in events[1:]] == [{"name": "bo"}, None, None]


def test_a_system_prompt_is_one_only_at_the_start() -> None:
    events = FORMATS["openai"].read([{"role": "system", "content": "a"}, USER, {"role": "system", "content": "b"}])
    assert [event["type"] for event in events] == ["system.prompt", "user.message", "system.message"]


def test_a_long_id_is_mapped_for_call_and_result_alike() -> None:
    long = "call_" + "x" * 80
    messages = [USER, assistant(content=None, tool_calls=[tool_call(long)]), answer(long)]
    back = round_trip("openai", messages)
    check_openai({"messages": back})
    assert back[1]["tool_calls"][0]["id"] == back[2]["tool_call_id"] != long


def test_neutral_calls_join_the_text_before_them() -> None:
    request = request_of(
        "openai", user(1), says(2, "Let me see."), call(3, "a"), call(4, "b"), result(5, "a"), result(6, "b")
    )
    check_openai(request)
    assert request["messages"][1:] == [
        assistant(content="Let me see.", tool_calls=[tool_call("a"), tool_call("b")]),
        answer("a", "found"),
        answer("b", "found"),
    ]


def test_text_after_an_open_call_belongs_to_its_message() -> None:
    """The text joins the open call's message in calls recorded by render versions 1 and 2."""
    blocks = (user(1), call(2, "a"), says(3, "one"), says(4, "two"), result(5, "a"), says(6, "three"))
    request = request_of("openai", *blocks, version=2)
    check_openai(request)
    assert [message.get("content") for message in request["messages"]] == ["go", "one\n\ntwo", "found", "three"]


def test_a_neutral_call_joins_a_message_that_had_null_for_calls() -> None:
    native = {"format": "openai", "head": {"tool_calls": None}}
    check_openai(request_of("openai", user(1), says(2, "x", native=native), call(3, "a"), result(4, "a")))


def test_errors_are_marked_in_results_of_other_formats_only() -> None:
    neutral = request_of("openai", user(1), call(2, "a"), result(3, "a", "no such file", is_error=True))
    assert neutral["messages"][-1]["content"] == "[error] no such file"
    stub = request_of("openai", user(1), call(2, "a"), result(3, "a", "left out", is_error=True, replaced=True))
    assert stub["messages"][-1]["content"] == "left out"


def test_images_in_results_follow_the_round_in_one_message() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
    request = request_of(
        "openai",
        user(1),
        call(2, "a"),
        call(3, "b"),
        result(4, "a", [{"type": "text", "text": "see"}, image]),
        result(5, "b", [image]),
        says(6, "Nice."),
    )
    check_openai(request)
    assert [message["role"] for message in request["messages"]] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "user",
        "assistant",
    ]
    shown = request["messages"][4]["content"]
    assert [part["type"] for part in shown] == ["text", "image_url", "image_url"]
    assert shown[1]["image_url"] == {"url": "data:image/png;base64,AA=="}


def test_a_replaced_result_keeps_its_place_and_pair() -> None:
    layout = layout_of_messages(
        "openai", [USER, assistant(content=None, tool_calls=[tool_call("a")]), answer("a", "a long text")]
    )
    *before, last = layout.blocks
    stub = result(last.seq, "a", "left out", native=last.native, replaced=True)
    assert request_of("openai", *before, stub)["messages"][-1] == answer("a", "left out")


def test_a_system_message_holds_text_only() -> None:
    parts = [{"type": "text", "text": "Look:"}, {"type": "image", "url": "u"}]
    request = request_of("openai", user(1), Block(Kind.SYSTEM, 2, parts), system=(Block(Kind.SYSTEM, 0, []),))
    check_openai(request)
    assert [message["content"] for message in request["messages"]] == ["(empty)", "go", "Look:\n[image]"]


def test_reasoning_of_others_is_absent_and_leaves_no_empty_message() -> None:
    thinking = {"type": "thinking", "thinking": "hm", "signature": "s"}
    request = request_of(
        "openai", user(1), says(2, [thinking]), call(3, "a"), result(4, "a"), says(5, [thinking]), user(6)
    )
    check_openai(request)
    assert [message["role"] for message in request["messages"]] == ["user", "assistant", "tool", "user"]
    assert "hm" not in str(request)
