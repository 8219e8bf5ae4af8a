"""OpenAI's Responses API: fields that are kept or refused, and the form of other formats' events."""

from typing import Any

import pytest

from app.core.errors import InvalidMessage
from app.core.log.event import Block, Kind
from app.core.render.formats import FORMATS
from tests.support.validators import check_openai_responses
from tests.unit.render.formats.layouts import (
    call,
    layout_of,
    layout_of_messages,
    request_of,
    result,
    round_trip,
    says,
    user,
)

FORM = "openai-responses"
USER = {"role": "user", "content": "hi"}
REASONING = {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "x"}


def item(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, "call_id": "a", **fields}


CALLS = {
    "function": [
        item("function_call", id="fc", name="read", arguments='{"path": "x"}', status="completed"),
        item("function_call_output", output=[{"type": "input_text", "text": "x"}], status="completed", id="fo"),
    ],
    "custom": [
        item("custom_tool_call", id="c", name="patch", input="*** Begin"),
        item("custom_tool_call_output", output=""),
    ],
    "computer": [
        item("computer_call", action={"type": "click"}, pending_safety_checks=[], status="completed", id="c"),
        item("computer_call_output", output={"type": "computer_screenshot", "image_url": "data:image/png;base64,AA=="}),
    ],
    "shell": [
        item("shell_call", action={"commands": ["ls"]}, status="in_progress"),
        item("shell_call_output", output=[{"stdout": "s", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]),
    ],
    "local shell": [
        item("local_shell_call", action={"type": "exec"}, id="l"),
        item("local_shell_call_output", output="o", id="l"),
    ],
    "patch": [
        item("apply_patch_call", operation={"type": "delete_file", "path": "x"}),
        item("apply_patch_call_output", status="completed"),
    ],
    "tool search": [
        item("tool_search_call", execution="client", arguments={}),
        item("tool_search_output", execution="client", status="completed", tools=[]),
    ],
}
SAID = {
    "type": "message",
    "id": "m",
    "status": "completed",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "x", "annotations": []}],
}


@pytest.mark.parametrize(
    "items",
    [
        [{"type": "message", "role": "developer", "content": "d"}, USER],
        [USER, {"role": "system", "content": "mid"}, {"type": "message", "role": "user", "content": "x"}],
        [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}, {"type": "hologram", "x": [None]}]}],
        [USER, REASONING, SAID, USER],
        [USER, {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}],
        [USER, REASONING, *CALLS["function"], REASONING, SAID],
        [
            USER,
            {"type": "web_search_call", "id": "w", "action": {}},
            {"type": "item_reference", "id": "z"},
            {"id": "z"},
        ],
        [USER, {"type": "tool_search_call", "call_id": None}, {"type": "tool_search_output", "call_id": None}, SAID],
        *([USER, *pair, SAID] for pair in CALLS.values()),
    ],
)
def test_items_come_back_as_they_were(items: list[dict[str, Any]]) -> None:
    assert round_trip(FORM, items) == items


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("", 7),
        ("type", {}),
        ("type", {"type": 7}),
        ("role", {"type": "message", "role": "tool", "content": "x"}),
        ("content", {"role": "user"}),
        ("content", {"role": "user", "content": [{"type": []}]}),
        ("call_id", {"type": "function_call", "name": "read", "arguments": "{}"}),
        ("call_id", {"type": "function_call_output", "output": "x"}),
        ("name", item("function_call", arguments="{}")),
        ("input", item("custom_tool_call", name="read", input={})),
        ("output", item("function_call_output")),
        ("output", item("function_call_output", output={"type": "x"})),
        ("output", item("local_shell_call_output", output=7)),
    ],
)
def test_a_malformed_item_is_named(field: str, bad: Any) -> None:
    with pytest.raises(InvalidMessage) as refused:
        FORMATS[FORM].read([USER, bad])
    assert refused.value.fields == {"index": 1, "field": field}


@pytest.mark.parametrize("kind", CALLS)
def test_a_replaced_or_pending_output_is_of_its_calls_kind(kind: str) -> None:
    asked, answered = layout_of_messages(FORM, CALLS[kind]).blocks
    pending = result(asked.seq, "a", "still running", replaced=True)
    stub = result(answered.seq, "a", "left out", native=answered.native, replaced=True)
    for shown in (pending, stub):
        request = request_of(FORM, user(0), asked, shown)
        check_openai_responses(request)
        if kind not in ("computer", "tool search"):
            assert str(shown.content) in str(request["input"][-1])
        assert "base64,AA==" not in str(request)
    assert request["input"][-1].get("id") == CALLS[kind][1].get("id")


def test_a_replaced_tool_search_brings_no_tools() -> None:
    found = item("tool_search_output", execution="client", status="completed", tools=[{"name": "x"}])
    asked, answered = layout_of_messages(FORM, [CALLS["tool search"][0], found]).blocks
    stub = result(answered.seq, "a", "left out", native=answered.native, replaced=True)
    assert request_of(FORM, user(0), asked, stub)["input"][-1] == {**found, "tools": []}


def test_calls_of_every_kind_have_neutral_arguments() -> None:
    events = FORMATS[FORM].read(CALLS["computer"])
    assert (events[0]["tool"], events[0]["arguments"]["action"]) == ("computer", {"type": "click"})
    assert request_of("anthropic", *layout_of(events).blocks)["messages"][2]["content"][0]["content"] == [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
    ]


def test_reasoning_is_held_until_its_response_follows() -> None:
    assert round_trip(FORM, [USER, REASONING]) == [USER]
    assert round_trip(FORM, [USER, REASONING, USER]) == [USER, USER]
    assert round_trip(FORM, [USER, REASONING, REASONING, SAID]) == [USER, REASONING, REASONING, SAID]


def test_blocks_that_the_provider_would_refuse_are_left_out_or_named() -> None:
    blank = {"type": "input_text", "text": ""}
    items = [{"role": "user", "content": [blank]}, {"role": "user", "content": [blank, {"type": "hologram"}]}]
    assert round_trip(FORM, [*items, {"role": "assistant", "content": ""}]) == [
        {"role": "user", "content": "(empty)"},
        {"role": "user", "content": [{"type": "hologram"}]},
        {"role": "assistant", "content": "(empty)"},
    ]


def test_a_system_prompt_of_its_own_stays_an_item_and_another_becomes_instructions() -> None:
    prompt = {"type": "message", "role": "developer", "content": "d"}
    own = layout_of_messages(FORM, [prompt, USER])
    assert request_of(FORM, *own.blocks, system=own.system) == {"input": [prompt, USER]}
    neutral = Block(Kind.SYSTEM, 1, [{"type": "text", "text": "s"}])
    assert request_of(FORM, *own.blocks, system=(neutral,)) == {"instructions": "s", "input": [USER]}


def test_neutral_events_take_this_shape() -> None:
    image = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
    request = request_of(
        FORM,
        user(1, [{"type": "text", "text": "see"}, image]),
        says(2, [{"type": "thinking", "thinking": "hm", "signature": "s"}]),
        says(3, "Let me see."),
        call(4, "a", "my.tool", {"x": 1}),
        call(5, "b" * 70),
        result(6, "a", [image], is_error=True),
        result(7, "b" * 70, None),
        Block(Kind.SYSTEM, 8, "Be kind."),
        Block(Kind.NOTE, 9, "a note"),
    )
    check_openai_responses(request)
    shown = {"type": "input_image", "image_url": "https://example.org/a.png", "detail": "auto"}
    assert request["input"][:3] == [
        {"role": "user", "content": [{"type": "input_text", "text": "see"}, shown]},
        {"role": "assistant", "content": "Let me see."},
        {"type": "function_call", "call_id": "a", "name": "my_tool", "arguments": '{"x":1}'},
    ]
    assert [i["output"] for i in request["input"][4:6]] == [
        [{"type": "input_text", "text": "[error]"}, shown],
        "(no output)",
    ]
    assert [i["role"] for i in request["input"][6:]] == ["system", "user"]


def test_items_of_its_own_are_named_or_absent_elsewhere() -> None:
    layout = layout_of_messages(FORM, [USER, REASONING, {"type": "web_search_call", "id": "w"}, *CALLS["custom"], USER])
    messages = request_of("openai", *layout.blocks)["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "user"]
    assert messages[1]["content"] == "[web_search_call]"
    assert messages[1]["tool_calls"][0]["function"] == {"name": "patch", "arguments": '{"input":"*** Begin"}'}
