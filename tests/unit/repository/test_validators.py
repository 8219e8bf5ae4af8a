"""Tests of the oracles: a valid request passes, and each rule refuses what violates it."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.validators import check_anthropic, check_openai, check_openai_responses

OPENAI: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "You help."},
        {"role": "user", "content": [{"type": "text", "text": "look"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "read", "arguments": '{"path":"x"}'}},
                {"id": "b", "type": "custom", "custom": {"name": "shell", "input": "ls"}},
            ],
        },
        {"role": "tool", "tool_call_id": "b", "content": ""},
        {"role": "tool", "tool_call_id": "a", "content": "found"},
        {"role": "assistant", "content": None, "refusal": "no"},
        {"role": "user", "content": "why?"},
    ],
    "tools": [{"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}],
}

RESPONSES: dict[str, Any] = {
    "instructions": "You help.",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "look"}]},
        {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "x"},
        {"type": "function_call", "call_id": "a", "name": "read", "arguments": "{}"},
        {"type": "function_call", "call_id": "b", "name": "read", "arguments": ""},
        {"type": "function_call_output", "call_id": "b", "output": ""},
        {"type": "function_call_output", "call_id": "a", "output": "found"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "there"}]},
    ],
    "tools": [{"type": "function", "name": "read", "parameters": {}}],
}

ANTHROPIC: dict[str, Any] = {
    "system": [{"type": "text", "text": "You help.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": "look"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "", "signature": "s"},
                {"type": "text", "text": "yes"},
                {"type": "tool_use", "id": "a", "name": "read", "input": {}},
                {"type": "tool_use", "id": "b", "name": "read", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "b"},
                {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "found"}]},
                {"type": "text", "text": "and?", "cache_control": {"type": "ephemeral"}},
            ],
        },
    ],
    "tools": [{"name": "read", "input_schema": {"type": "object"}}],
}

Spoil = Callable[[dict[str, Any]], object]


def assert_refused(check: Callable[[Any], None], good: dict[str, Any], spoil: Spoil, reason: str) -> None:
    bad = copy.deepcopy(good)
    spoil(bad)
    with pytest.raises(AssertionError, match=reason):
        check(bad)


def test_good_requests_pass() -> None:
    check_openai(OPENAI)
    check_openai_responses(RESPONSES)
    check_anthropic(ANTHROPIC)


def message_at(request: dict[str, Any], index: int) -> dict[str, Any]:
    message: dict[str, Any] = request["messages"][index]
    return message


def openai_call(request: dict[str, Any], index: int = 0) -> dict[str, Any]:
    call: dict[str, Any] = request["messages"][2]["tool_calls"][index]
    return call


@pytest.mark.parametrize(
    ("reason", "spoil"),
    [
        ("no messages", lambda r: r["messages"].clear()),
        ("breakpoints", lambda r: r.update(breakpoints=[])),
        ("unknown role", lambda r: message_at(r, 1).update(role="human")),
        ("unanswered directly behind", lambda r: r["messages"].pop(3)),
        ("unanswered directly behind", lambda r: r["messages"].insert(3, {"role": "user", "content": "wait"})),
        ("unanswered at the end", lambda r: r["messages"].__delitem__(slice(3, None))),
        ("without its call", lambda r: r["messages"].append({"role": "tool", "tool_call_id": "a", "content": "x"})),
        ("without its call", lambda r: r["messages"].insert(4, {**r["messages"][3]})),
        ("without its call", lambda r: r["messages"].pop(2)),
        ("one id", lambda r: openai_call(r, 1).update(id="a")),
        ("illegal call id", lambda r: openai_call(r).update(id="a" * 41)),
        ("illegal call id", lambda r: openai_call(r).update(id="a\n")),
        ("illegal tool name", lambda r: openai_call(r)["function"].update(name="my.read")),
        ("illegal tool name", lambda r: openai_call(r, 1)["custom"].update(name="")),
        ("arguments must be JSON text", lambda r: openai_call(r)["function"].update(arguments={})),
        ("arguments must be an object", lambda r: openai_call(r)["function"].update(arguments="[1]")),
        ("input must be text", lambda r: openai_call(r, 1)["custom"].update(input={})),
        ("empty tool_calls", lambda r: message_at(r, 5).update(tool_calls=[])),
        ("calls of a", lambda r: message_at(r, 6).update(tool_calls=[])),
        ("empty content", lambda r: message_at(r, 6).update(content=" \n")),
        ("empty content", lambda r: message_at(r, 1).update(content=[])),
        ("empty text part", lambda r: message_at(r, 1)["content"][0].update(text="")),
        ("neither text nor parts", lambda r: message_at(r, 5).update(refusal=None)),
        ("no text", lambda r: message_at(r, 4).update(content=[{"type": "image_url", "image_url": {"url": "u"}}])),
        ("no text", lambda r: message_at(r, 0).update(content=[{"type": "image_url", "image_url": {"url": "u"}}])),
        (
            "without its address",
            lambda r: message_at(r, 1).update(content=[{"type": "image_url", "image_url": {"url": ""}}]),
        ),
        ("illegal tool name", lambda r: r["tools"][0]["function"].update(name="a b")),
        ("must be an object", lambda r: r["tools"][0]["function"].update(parameters=None)),
        ("two tools", lambda r: r["tools"].append(r["tools"][0])),
    ],
)
def test_openai_refuses(reason: str, spoil: Spoil) -> None:
    assert_refused(check_openai, OPENAI, spoil, reason)


def test_openai_arguments_must_parse() -> None:
    bad = copy.deepcopy(OPENAI)
    openai_call(bad)["function"]["arguments"] = "{"
    with pytest.raises(ValueError, match="property name"):
        check_openai(bad)


@pytest.mark.parametrize(
    ("reason", "spoil"),
    [
        ("no input", lambda r: r["input"].clear()),
        ("messages", lambda r: r.update(messages=[])),
        ("empty instructions", lambda r: r.update(instructions=" ")),
        ("unknown role", lambda r: r["input"][0].update(role="tool")),
        ("empty content", lambda r: r["input"][0].update(content="")),
        ("empty content", lambda r: r["input"][0].update(content=[])),
        ("neither text nor parts", lambda r: r["input"][0].update(content=None)),
        ("empty text part", lambda r: r["input"][0]["content"][0].update(text=" ")),
        ("another role", lambda r: r["input"][0]["content"][0].update(type="output_text")),
        ("another role", lambda r: r["input"][6]["content"][0].update(type="input_text")),
        ("no such part", lambda r: r["input"][0]["content"][0].update(type="text")),
        ("without the item", lambda r: r["input"].append({"type": "reasoning", "summary": []})),
        ("without the item", lambda r: r["input"].insert(5, {"type": "reasoning", "summary": []})),
        ("without the item", lambda r: r["input"].insert(0, {"type": "reasoning", "summary": []})),
        ("without its call", lambda r: r["input"].insert(1, r["input"].pop(5))),
        ("without its call", lambda r: r["input"].append(r["input"][5])),
        ("no output", lambda r: r["input"][5].update(output=None)),
        ("another kind", lambda r: r["input"][5].update(type="custom_tool_call_output")),
        ("another kind", lambda r: r["input"][2].update(type="shell_call")),
        ("input must be text", lambda r: r["input"][2].update(type="custom_tool_call")),
        ("one id", lambda r: r["input"][3].update(call_id="a")),
        ("illegal call id", lambda r: r["input"][2].update(call_id="a" * 65)),
        ("illegal tool name", lambda r: r["input"][2].update(name="a/b")),
        ("arguments must be an object", lambda r: r["input"][2].update(arguments="null")),
        ("calls unanswered", lambda r: r["input"].insert(4, {"role": "user", "content": "wait"})),
        ("unanswered at the end", lambda r: r["input"].pop(5)),
        ("illegal tool name", lambda r: r["tools"][0].update(name="ä")),
        ("two tools", lambda r: r["tools"].append(r["tools"][0])),
    ],
)
def test_openai_responses_refuses(reason: str, spoil: Spoil) -> None:
    assert_refused(check_openai_responses, RESPONSES, spoil, reason)


def mark(*parts: dict[str, Any]) -> None:
    for part in parts:
        part["cache_control"] = {"type": "ephemeral"}


@pytest.mark.parametrize(
    ("reason", "spoil"),
    [
        ("no messages", lambda r: r["messages"].clear()),
        ("input", lambda r: r.update(input=[])),
        ("first message", lambda r: r["messages"].pop(0)),
        ("unknown role", lambda r: r["messages"].append({"role": "human", "content": "x"})),
        ("empty content", lambda r: message_at(r, 0).update(content=[])),
        ("empty text", lambda r: message_at(r, 0).update(content=" ")),
        ("empty text", lambda r: message_at(r, 1)["content"][1].update(text="\n")),
        ("answered in the next", lambda r: r["messages"].insert(2, {"role": "assistant", "content": "x"})),
        ("those of the calls before", lambda r: r["messages"].insert(2, {"role": "user", "content": "x"})),
        ("those of the calls before", lambda r: message_at(r, 2)["content"].pop(0)),
        ("those of the calls before", lambda r: r["messages"].append(r["messages"][2])),
        ("come first", lambda r: message_at(r, 2)["content"].insert(0, message_at(r, 2)["content"].pop())),
        ("unanswered at the end", lambda r: r["messages"].pop()),
        ("unique", lambda r: r["messages"].extend(r["messages"][1:])),
        ("illegal call id", lambda r: message_at(r, 1)["content"][2].update(id="a.b")),
        ("illegal tool name", lambda r: message_at(r, 1)["content"][2].update(name="a.b")),
        ("input must be", lambda r: message_at(r, 1)["content"][2].update(input="{}")),
        ("without its signature", lambda r: message_at(r, 1)["content"][0].pop("signature")),
        ("without its signature", lambda r: message_at(r, 1)["content"][0].update(signature="")),
        ("without its data", lambda r: message_at(r, 1)["content"].insert(0, {"type": "redacted_thinking"})),
        ("thinking of the user", lambda r: message_at(r, 2)["content"].append(message_at(r, 1)["content"][0])),
        ("tool_use of the user", lambda r: message_at(r, 2)["content"].append(message_at(r, 1)["content"][2])),
        ("image of the assistant", lambda r: message_at(r, 1)["content"].append({"type": "image", "source": {}})),
        ("image source", lambda r: message_at(r, 2)["content"].append({"type": "image", "source": {"type": "x"}})),
        ("no result holds", lambda r: message_at(r, 2)["content"][1]["content"].append({"type": "tool_use"})),
        ("empty text in a result", lambda r: message_at(r, 2)["content"][1]["content"][0].update(text="")),
        ("inside a result", lambda r: mark(message_at(r, 2)["content"][1]["content"][0])),
        ("at the end", lambda r: message_at(r, 1)["content"].append(message_at(r, 1)["content"].pop(0))),
        ("on thinking", lambda r: mark(message_at(r, 1)["content"][0])),
        ("more cache markers", lambda r: mark(*message_at(r, 1)["content"][1:], r["tools"][0])),
        ("unknown cache marker", lambda r: r["tools"][0].update(cache_control={"type": "eternal"})),
        ("empty system", lambda r: r["system"].clear()),
        ("empty text", lambda r: r["system"][0].update(text="")),
        ("no text", lambda r: r["system"][0].update(type="image")),
        ("illegal tool name", lambda r: r["tools"][0].update(name="a" * 65)),
        ("must be an object's", lambda r: r["tools"][0].update(input_schema={})),
        ("two tools", lambda r: r["tools"].append(r["tools"][0])),
    ],
)
def test_anthropic_refuses(reason: str, spoil: Spoil) -> None:
    assert_refused(check_anthropic, ANTHROPIC, spoil, reason)


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("computer_call", {"output": {"type": "computer_screenshot", "image_url": "u"}}, {"output": "seen"}),
        ("computer_call", {"output": {"type": "computer_screenshot", "file_id": "f"}}, {"output": {"type": "text"}}),
        ("shell_call", {"output": []}, {"output": "done"}),
        ("local_shell_call", {"output": ""}, {"output": []}),
        ("apply_patch_call", {"status": "completed"}, {"status": "done"}),
    ],
)
def test_each_kind_of_call_has_an_output_of_its_own(kind: str, good: dict[str, Any], bad: dict[str, Any]) -> None:
    def answered(output: dict[str, Any]) -> dict[str, Any]:
        call = {"type": kind, "call_id": "a"}
        return {"input": [{"role": "user", "content": "go"}, call, {**call, "type": f"{kind}_output", **output}]}

    check_openai_responses(answered(good))
    with pytest.raises(AssertionError, match="item 2"):
        check_openai_responses(answered(bad))


def test_blank_content_is_accepted_beside_calls_only() -> None:
    good = copy.deepcopy(OPENAI)
    message_at(good, 2)["content"] = "\n"
    check_openai(good)
    assert_refused(
        check_openai, OPENAI, lambda r: r["messages"].append({"role": "assistant", "content": "\n"}), "empty"
    )
