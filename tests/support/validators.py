"""Strict validators of each provider's requests, from the documented rules; they share no code with the server."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

Value = Mapping[str, Any]

OPENAI_ID = re.compile(r"\S{1,40}")
RESPONSES_ID = re.compile(r"\S{1,64}")
ANTHROPIC_ID = re.compile(r"[a-zA-Z0-9_-]{1,256}")
TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
MARKERS_MAX = 4
OUTPUTS = {"tool_search_call": "tool_search_output"}
IN_RESULTS = ("text", "image", "document", "search_result", "tool_reference")


def check_openai(request: Value) -> None:
    """Check a chat completions request."""
    assert set(request) <= {"messages", "tools"}, set(request)
    messages = request["messages"]
    assert messages, "no messages"
    waiting: list[str] = []
    for index, message in enumerate(messages):
        where = f"message {index}"
        role = message["role"]
        assert role in ("system", "developer", "user", "assistant", "tool", "function"), (where, "unknown role", role)
        if role == "tool":
            call_id = message["tool_call_id"]
            assert call_id in waiting, (where, "a result without its call directly before", call_id)
            waiting.remove(call_id)
            _openai_content(message["content"], where, texts_only=True, may_be_empty=True)
            continue
        assert not waiting, (where, "calls unanswered directly behind them", waiting)
        if role == "assistant":
            waiting = _openai_assistant(message, where)
        else:
            assert "tool_calls" not in message, (where, "calls of a", role)
            _openai_content(message["content"], where, texts_only=role in ("system", "developer"))
    assert not waiting, ("calls unanswered at the end", waiting)
    for tool in request.get("tools", []):
        if tool["type"] == "function":
            _name(tool["function"]["name"], "tools")
            assert isinstance(tool["function"].get("parameters", {}), dict), ("tools", "parameters must be an object")
    _no_twins([tool["function"]["name"] for tool in request.get("tools", []) if tool["type"] == "function"])


def _openai_assistant(message: Value, where: str) -> list[str]:
    """Check an assistant message and return the ids of its calls."""
    calls = message.get("tool_calls")
    waiting: list[str] = []
    if calls is not None:
        assert calls, (where, "empty tool_calls")
        waiting = [_openai_call(call, where) for call in calls]
        assert len(set(waiting)) == len(waiting), (where, "two calls with one id")
    says_otherwise = bool(calls or any(message.get(name) for name in ("refusal", "audio", "function_call")))
    if message.get("content") is not None or not says_otherwise:
        _openai_content(message.get("content"), where, texts_only=True, may_be_empty=says_otherwise)
    return waiting


def _openai_call(call: Value, where: str) -> str:
    call_id: str = call["id"]
    assert OPENAI_ID.fullmatch(call_id), (where, "illegal call id", call_id)
    if call.get("type") == "custom":
        _name(call["custom"]["name"], where)
        assert isinstance(call["custom"]["input"], str), (where, "input must be text")
    else:
        _name(call["function"]["name"], where)
        _arguments(call["function"]["arguments"], where)
    return call_id


def _openai_content(content: object, where: str, *, texts_only: bool = False, may_be_empty: bool = False) -> None:
    if isinstance(content, str):
        assert may_be_empty or content.strip(), (where, "empty content")
        return
    assert isinstance(content, list), (where, "content is neither text nor parts", content)
    assert content or may_be_empty, (where, "empty content")
    for part in content:
        assert not texts_only or part["type"] in ("text", "refusal"), (where, "a part that is no text", part["type"])
        if part["type"] == "text":
            assert part["text"].strip() or may_be_empty, (where, "empty text part")
        elif part["type"] == "image_url":
            assert part["image_url"]["url"], (where, "an image without its address")


def check_openai_responses(request: Value) -> None:
    """Check a Responses request."""
    assert set(request) <= {"input", "instructions", "tools"}, set(request)
    items = request["input"]
    assert items, "no input"
    assert request.get("instructions", "some").strip(), "empty instructions"
    waiting: dict[str, str] = {}
    for index, item in enumerate(items):
        where = f"item {index}"
        kind = item.get("type", "message")
        if kind == "message":
            assert item["role"] in ("system", "developer", "user", "assistant"), (where, "unknown role", item["role"])
            assert item["role"] == "assistant" or not waiting, (where, "calls unanswered", list(waiting))
            _responses_content(item["content"], item["role"], where)
        elif kind == "local_shell_call_output" and item.get("call_id") is None:
            assert waiting.pop(item["id"]) == "local_shell_call", (where, "an output without its call", item["id"])
            _responses_output(kind, item, where)
        elif kind.endswith("_output") and item.get("call_id") is not None:
            assert item["call_id"] in waiting, (where, "an output without its call", item["call_id"])
            call_kind = waiting.pop(item["call_id"])
            assert kind == OUTPUTS.get(call_kind, f"{call_kind}_output"), (where, "an output of another kind", kind)
            _responses_output(kind, item, where)
        elif kind.endswith("_call") and item.get("call_id") is not None:
            assert RESPONSES_ID.fullmatch(item["call_id"]), (where, "illegal call id", item["call_id"])
            assert item["call_id"] not in waiting, (where, "two open calls with one id")
            waiting[item["call_id"]] = kind
            if kind == "function_call":
                _name(item["name"], where)
                _arguments(item["arguments"], where)
            elif kind == "custom_tool_call":
                _name(item["name"], where)
                assert isinstance(item.get("input"), str), (where, "input must be text")
        elif kind == "reasoning":
            _reasoning(items[index + 1 :], where)
    assert not waiting, ("calls unanswered at the end", list(waiting))
    for tool in request.get("tools", []):
        if tool["type"] == "function":
            _name(tool["name"], "tools")
    _no_twins([tool["name"] for tool in request.get("tools", []) if tool["type"] == "function"])


def _responses_output(kind: str, item: Value, where: str) -> None:
    output = item.get("output")
    if kind in ("function_call_output", "custom_tool_call_output"):
        assert isinstance(output, (str, list)), (where, "no output")
    elif kind == "computer_call_output":
        assert isinstance(output, Mapping), (where, "a computer's output must be a screenshot")
        assert output["type"] == "computer_screenshot", (where, "a computer's output must be a screenshot")
    elif kind == "shell_call_output":
        assert isinstance(output, list), (where, "a shell's output must be a list")
    elif kind == "local_shell_call_output":
        assert isinstance(output, str), (where, "no output")
    elif kind == "apply_patch_call_output":
        assert item["status"] in ("completed", "failed"), (where, "unknown status", item["status"])


def _responses_content(content: object, role: str, where: str) -> None:
    if isinstance(content, str):
        assert content.strip(), (where, "empty content")
        return
    assert isinstance(content, list), (where, "content is neither text nor parts", content)
    assert content, (where, "empty content")
    foreign = "input_" if role == "assistant" else "output_"
    for part in content:
        assert not part["type"].startswith(foreign), (where, f"a part of another role than {role}", part["type"])
        assert part["type"] not in ("text", "image_url", "tool_use", "tool_result"), (where, "no such part", part)
        if part["type"] in ("input_text", "output_text"):
            assert part["text"].strip(), (where, "empty text part")


def _reasoning(following: Sequence[Value], where: str) -> None:
    rest = [item for item in following if item.get("type") != "reasoning"]
    assert rest, (where, "reasoning without the item it led to")
    led_to = rest[0].get("type", "message")
    assert rest[0].get("role", "assistant") == "assistant", (where, "reasoning without the item it led to")
    assert not led_to.endswith("_output"), (where, "reasoning without the item it led to")


def check_anthropic(request: Value) -> None:
    """Check a Messages request."""
    assert set(request) <= {"system", "messages", "tools"}, set(request)
    messages = request["messages"]
    assert messages, "no messages"
    assert messages[0]["role"] == "user", "the first message must be the user's"
    markers = _anthropic_prefix(request)
    seen: set[str] = set()
    waiting: list[str] = []
    for index, message in enumerate(messages):
        where = f"message {index}"
        role, content = message["role"], message["content"]
        assert role in ("user", "assistant", "system"), (where, "unknown role", role)
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        assert parts, (where, "empty content")
        ends_thinking = role == "assistant" and parts[-1]["type"] in ("thinking", "redacted_thinking")
        assert not ends_thinking, (where, "thinking at the end of a message")
        if role == "system":
            assert all(part["type"] == "text" for part in parts), (where, "a system message holds text only")
        if waiting:
            assert role == "user", (where, "calls must be answered in the next message", waiting)
        if role == "user":
            results = [part["tool_use_id"] for part in parts if part["type"] == "tool_result"]
            assert sorted(results) == sorted(waiting), (where, "results must be those of the calls before", results)
            kinds = [part["type"] == "tool_result" for part in parts]
            assert kinds == sorted(kinds, reverse=True), (where, "results must come first")
            waiting = []
        for part in parts:
            markers += _anthropic_part(part, role, where)
            if part["type"] == "tool_use":
                assert part["id"] not in seen, (where, "ids must be unique", part["id"])
                seen.add(part["id"])
                waiting.append(part["id"])
    assert not waiting, ("calls unanswered at the end", waiting)
    assert markers <= MARKERS_MAX, ("more cache markers than four", markers)


def _anthropic_prefix(request: Value) -> int:
    """Check system and tools, and return the number of cache markers in them."""
    markers = 0
    system, tools = request.get("system", [{"type": "text", "text": "none"}]), request.get("tools", [])
    assert system, "empty system"
    for part in [{"type": "text", "text": system}] if isinstance(system, str) else system:
        assert part["type"] == "text", ("system", "a part that is no text", part["type"])
        assert part["text"].strip(), ("system", "empty text")
        markers += _marker(part, "system")
    for tool in tools:
        markers += _marker(tool, "tools")
        if "input_schema" in tool:
            _name(tool["name"], "tools")
            assert tool["input_schema"].get("type") == "object", ("tools", "a schema must be an object's", tool)
    _no_twins([tool["name"] for tool in tools])
    return markers


def _anthropic_part(part: Value, role: str, where: str) -> int:
    """Check a content part and return the number of its cache markers."""
    kind = part["type"]
    marked = _marker(part, where)
    if kind in ("thinking", "redacted_thinking", "tool_use"):
        assert role == "assistant", (where, f"{kind} of the user")
    elif kind in ("tool_result", "image", "document"):
        assert role == "user", (where, f"{kind} of the assistant")
    if kind in ("thinking", "redacted_thinking"):
        assert not marked, (where, "a cache marker on thinking")
    if kind == "text":
        assert part["text"].strip(), (where, "empty text")
    elif kind == "thinking":
        assert isinstance(part["thinking"], str), where
        assert isinstance(part.get("signature"), str), (where, "thinking without its signature")
        assert part["signature"], (where, "thinking without its signature")
    elif kind == "redacted_thinking":
        assert isinstance(part.get("data"), str), (where, "redacted thinking without its data")
    elif kind == "tool_use":
        assert ANTHROPIC_ID.fullmatch(part["id"]), (where, "illegal call id", part["id"])
        _name(part["name"], where)
        assert isinstance(part["input"], Mapping), (where, "input must be an object")
    elif kind == "tool_result":
        assert ANTHROPIC_ID.fullmatch(part["tool_use_id"]), (where, "illegal call id", part["tool_use_id"])
        _anthropic_result(part.get("content", ""), where)
    elif kind == "image":
        assert part["source"]["type"] in ("base64", "url", "file"), (where, "unknown image source")
    return marked


def _anthropic_result(content: str | Sequence[Value], where: str) -> None:
    """Check a result's content, which may be empty but must not contain an empty text."""
    if isinstance(content, str):
        return
    for piece in content:
        assert piece["type"] in IN_RESULTS, (where, "a part that no result holds", piece["type"])
        assert "cache_control" not in piece, (where, "a cache marker inside a result")
        assert piece["type"] != "text" or piece["text"].strip(), (where, "empty text in a result")


GEMINI_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,127}")
GEMINI_DATA = ("text", "inlineData", "fileData", "functionCall", "functionResponse", "executableCode")
GEMINI_DATA += ("codeExecutionResult", "toolCall", "toolResponse")


def check_gemini(request: Value) -> None:
    """Check a generateContent request: after calls comes a content with as many responses, and the model never speaks
    twice.
    """
    assert set(request) <= {"systemInstruction", "contents", "tools"}, set(request)
    for part in request.get("systemInstruction", {"parts": [{"text": "none"}]})["parts"]:
        assert part["text"].strip(), ("system", "empty text")
    contents = request["contents"]
    assert contents, "no contents"
    assert contents[0]["role"] == "user", "the first content must be the user's"
    waiting: list[tuple[str | None, str]] = []
    before = "user"
    for index, content in enumerate(contents):
        where, role, parts = f"content {index}", content["role"], content["parts"]
        assert role in ("user", "model"), (where, "unknown role", role)
        assert (before, role) != ("model", "model"), (where, "two contents of the model in a row")
        assert parts, (where, "no parts")
        before = role
        answers = [part["functionResponse"] for part in parts if "functionResponse" in part]
        assert role == "user" or not answers, (where, "a response of the model")
        kinds = ["functionResponse" in part for part in parts]
        assert kinds == sorted(kinds, reverse=True), (where, "responses must come first")
        assert len(answers) == len(waiting), (where, "as many responses as calls", len(answers), waiting)
        for answer in answers:
            _gemini_response(answer, waiting, where)
        calls = [part["functionCall"] for part in parts if "functionCall" in part]
        assert role == "model" or not calls, (where, "a call of the user")
        waiting = [_gemini_call(call, where) for call in calls]
        for part in parts:
            _gemini_part(part, where)
    assert not waiting, ("calls unanswered at the end", waiting)
    declared = [one for tool in request.get("tools", []) for one in tool.get("functionDeclarations", [])]
    assert all(tool for tool in request.get("tools", [])), ("tools", "an empty tool")
    for one in declared:
        assert GEMINI_NAME.fullmatch(one["name"]), ("tools", "illegal name", one["name"])
        assert not ("parameters" in one and "parametersJsonSchema" in one), ("tools", "two schemas", one)
        assert isinstance(one.get("parametersJsonSchema", {}), dict), ("tools", "a schema must be an object", one)
    _no_twins([one["name"] for one in declared])


def _gemini_call(call: Value, where: str) -> tuple[str | None, str]:
    assert GEMINI_NAME.fullmatch(call["name"]), (where, "illegal name", call["name"])
    assert isinstance(call.get("args", {}), Mapping), (where, "args must be an object")
    assert call.get("id", "some"), (where, "an empty id")
    return call.get("id"), call["name"]


def _gemini_response(answer: Value, waiting: list[tuple[str | None, str]], where: str) -> None:
    """Match a response to the call of its id, or without an id to the first call of its name."""
    found = [call for call in waiting if call[1] == answer["name"] and answer.get("id") in (None, call[0])]
    assert found, (where, "a response without its call", answer, waiting)
    waiting.remove(found[0])
    assert isinstance(answer["response"], Mapping), (where, "a response must be an object")


def _gemini_part(part: Value, where: str) -> None:
    assert "type" not in part, (where, "parts have no type", part)
    held = [name for name in GEMINI_DATA if name in part]
    assert len(held) <= 1, (where, "a part holds one thing", held)
    assert part, (where, "an empty part")
    if held == ["text"]:
        assert part["text"].strip() or part.get("thoughtSignature"), (where, "empty text")
    if held == ["inlineData"]:
        assert part["inlineData"]["mimeType"] and part["inlineData"]["data"], (where, "no data")
    if held == ["fileData"]:
        assert part["fileData"]["fileUri"], (where, "no address")


def _marker(part: Value, where: str) -> int:
    if "cache_control" not in part:
        return 0
    assert part["cache_control"].get("type") == "ephemeral", (where, "unknown cache marker")
    return 1


def _name(name: object, where: str) -> None:
    assert isinstance(name, str), (where, "illegal tool name", name)
    assert TOOL_NAME.fullmatch(name), (where, "illegal tool name", name)


def _arguments(arguments: object, where: str) -> None:
    """Check that arguments are JSON of an object, or "", which some vendors send for a call without arguments."""
    assert isinstance(arguments, str), (where, "arguments must be JSON text")
    assert arguments == "" or isinstance(json.loads(arguments), dict), (where, "arguments must be an object")


def _no_twins(names: Sequence[str]) -> None:
    assert len(set(names)) == len(names), ("tools", "two tools of one name")
