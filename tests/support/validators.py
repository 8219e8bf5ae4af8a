"""Strict oracles of what each provider accepts, from their documented rules; no code is shared with the server."""

import json
import re

OPENAI_ID = re.compile(r"^\S{1,40}$")
RESPONSES_ID = re.compile(r"^\S{1,64}$")
ANTHROPIC_ID = re.compile(r"^[a-zA-Z0-9_-]{1,256}$")
TOOL_NAME = re.compile(r"^[a-zA-Z0-9_-]{1,64}$")


def check_openai(request: dict) -> None:
    """Chat completions."""
    assert set(request) <= {"messages", "tools"}, set(request)
    messages = request["messages"]
    assert messages, "no messages"
    waiting: list[str] = []
    for index, message in enumerate(messages):
        where = f"message {index}"
        role = message["role"]
        assert role in ("system", "developer", "user", "assistant", "tool", "function"), (where, role)
        if role == "tool":
            call_id = message["tool_call_id"]
            assert call_id in waiting, (where, "a result without its call directly before", call_id)
            waiting.remove(call_id)
            _openai_content(message["content"], where, texts_only=True, may_be_empty=True)
            continue
        assert not waiting, (where, "calls unanswered directly behind them", waiting)
        if role == "assistant":
            calls = message.get("tool_calls")
            if calls is not None:
                assert calls, (where, "empty tool_calls")
                waiting = [_openai_call(call, where) for call in calls]
                assert len(set(waiting)) == len(waiting), (where, "two calls with one id")
            others = any(message.get(name) for name in ("refusal", "audio", "function_call"))
            if not calls and not others:
                _openai_content(message.get("content"), where)
            elif message.get("content"):
                _openai_content(message["content"], where)
        else:
            _openai_content(message["content"], where)
    assert not waiting, ("calls unanswered at the end", waiting)
    for tool in request.get("tools", []):
        if tool["type"] == "function":
            assert TOOL_NAME.match(tool["function"]["name"]), tool
            assert isinstance(tool["function"].get("parameters", {}), dict)


def _openai_call(call: dict, where: str) -> str:
    assert OPENAI_ID.match(call["id"]), (where, call["id"])
    inner = call["custom"] if call.get("type") == "custom" else call["function"]
    assert TOOL_NAME.match(inner["name"]), (where, inner["name"])
    if call.get("type") != "custom":
        assert isinstance(inner["arguments"], str), where
        assert inner["arguments"] == "" or isinstance(json.loads(inner["arguments"]), dict), where
    return call["id"]


def _openai_content(content: object, where: str, *, texts_only: bool = False, may_be_empty: bool = False) -> None:
    if isinstance(content, str):
        assert may_be_empty or content.strip(), (where, "empty content")
        return
    assert isinstance(content, list), (where, content)
    assert content or may_be_empty, (where, "no parts")
    for part in content:
        if texts_only:
            assert part["type"] in ("text", "refusal"), (where, part["type"])
        if part["type"] == "text":
            assert part["text"].strip() or may_be_empty, (where, "empty text part")


def check_openai_responses(request: dict) -> None:
    """Responses input."""
    assert set(request) <= {"input", "instructions", "tools"}, set(request)
    items = request["input"]
    assert items, "no input"
    if "instructions" in request:
        assert request["instructions"].strip()
    waiting: list[str] = []
    for index, item in enumerate(items):
        where = f"item {index}"
        kind = item.get("type", "message")
        if kind == "message":
            assert item["role"] in ("system", "developer", "user", "assistant"), where
            content = item["content"]
            if isinstance(content, str):
                assert content.strip(), (where, "empty content")
            else:
                assert content, (where, "no parts")
            if item["role"] != "assistant":
                assert not waiting, (where, "calls unanswered", waiting)
        elif kind.endswith("_call_output"):
            assert item["call_id"] in waiting, (where, "an output without its call", item["call_id"])
            waiting.remove(item["call_id"])
            assert "output" in item, where
        elif kind.endswith("_call") and "call_id" in item:
            assert RESPONSES_ID.match(item["call_id"]), (where, item["call_id"])
            assert item["call_id"] not in waiting, (where, "two open calls with one id")
            waiting.append(item["call_id"])
            if kind == "function_call":
                assert TOOL_NAME.match(item["name"]), (where, item["name"])
                assert item["arguments"] == "" or isinstance(json.loads(item["arguments"]), dict), where
        elif kind == "reasoning":
            following = items[index + 1 :]
            assert following, (where, "reasoning without the item it led to")
            assert following[0].get("role") != "user", (where, "reasoning without the item it led to")
    assert not waiting, ("calls unanswered", waiting)
    for tool in request.get("tools", []):
        if tool["type"] == "function":
            assert TOOL_NAME.match(tool["name"]), tool


def check_anthropic(request: dict) -> None:
    """Messages."""
    assert set(request) <= {"system", "messages", "tools"}, set(request)
    messages = request["messages"]
    assert messages, "no messages"
    assert messages[0]["role"] == "user", "the first message must be the user's"
    markers = 0
    for part in request.get("system", []):
        assert part["type"] == "text"
        assert part["text"].strip(), "empty system text"
        markers += "cache_control" in part
    for tool in request.get("tools", []):
        markers += "cache_control" in tool
        if "input_schema" in tool:
            assert TOOL_NAME.match(tool["name"]), tool
            assert tool["input_schema"].get("type") == "object", tool
    seen: set[str] = set()
    waiting: list[str] = []
    for index, message in enumerate(messages):
        where = f"message {index}"
        role, content = message["role"], message["content"]
        assert role in ("user", "assistant"), (where, role)
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        assert parts, (where, "empty message")
        if waiting:
            assert role == "user", (where, "calls must be answered in the next message", waiting)
        results = [part["tool_use_id"] for part in parts if part["type"] == "tool_result"]
        if role == "user":
            assert sorted(results) == sorted(waiting), (where, "results must be those of the calls before", results)
            kinds = [part["type"] == "tool_result" for part in parts]
            assert kinds == sorted(kinds, reverse=True), (where, "results must come first")
            waiting = []
        for part in parts:
            markers += _anthropic_part(part, role, where)
            if part["type"] == "tool_use":
                assert role == "assistant", where
                assert part["id"] not in seen, (where, "ids must be unique", part["id"])
                seen.add(part["id"])
                waiting.append(part["id"])
    assert not waiting, ("calls unanswered at the end", waiting)
    assert markers <= 4, ("more than four cache markers", markers)


def _anthropic_part(part: dict, role: str, where: str) -> bool:
    kind = part["type"]
    marked = "cache_control" in part
    if kind == "text":
        assert part["text"].strip(), (where, "empty text")
    elif kind == "thinking":
        assert role == "assistant", where
        assert isinstance(part["signature"], str), (where, "thinking without signature")
        assert not marked, (where, "a marker on thinking")
    elif kind == "redacted_thinking":
        assert role == "assistant", where
        assert part["data"], where
        assert not marked, (where, "a marker on thinking")
    elif kind == "tool_use":
        assert ANTHROPIC_ID.match(part["id"]), (where, part["id"])
        assert TOOL_NAME.match(part["name"]), (where, part["name"])
        assert isinstance(part["input"], dict), where
    elif kind == "tool_result":
        assert ANTHROPIC_ID.match(part["tool_use_id"]), where
        inner = part.get("content", "")
        for piece in inner if isinstance(inner, list) else []:
            assert piece["type"] in ("text", "image", "document", "search_result", "tool_reference"), (where, piece["type"])
            if piece["type"] == "text":
                assert piece["text"].strip(), (where, "empty text in a result")
    elif kind == "image":
        assert role == "user", where
        assert part["source"]["type"] in ("base64", "url", "file"), where
    return marked
