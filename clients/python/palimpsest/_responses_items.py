"""Conversion of a log's events to input items of OpenAI's Responses API."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from palimpsest.types import EventOut

FORMAT = "openai-responses"
TEXT_PARTS = frozenset({"text", "input_text", "output_text", "refusal", "input_image", "input_file", "input_audio"})
ROLES = {"user.message": "user", "assistant.message": "assistant", "system.message": "system"}
SINGLE_OUTPUTS = frozenset({"computer_call"})
TEXT_OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output"})
ADDED = "palimpsest_added"
"""The metadata of a call that the server added for a result without one."""
OWN_KINDS = frozenset({"computer", "local_shell", "shell", "apply_patch", "tool_search"})
"""The provider's tools whose calls have an item type of their own."""


def items_of(events: Iterable[EventOut]) -> list[tuple[int, dict[str, Any]]]:
    """Return the conversation as items, each with the seq of its first event.

    Events appended as items become the same items again. Reasoning from other formats is omitted, since this one cannot
    verify it, and so are calls that the server added for results without one.
    """
    kinds: dict[str, str] = {}
    found: list[tuple[int, dict[str, Any]]] = []
    begins: int | None = None
    for event in events:
        item: dict[str, Any] | None = None
        native = event.native or {}
        own = native if native.get("format") == FORMAT and not event.redacted else None
        if event.type in ROLES:
            item = _message(ROLES[event.type], event.content) if own is None else _own_message(event, own)
        elif event.type == "tool.call":
            if (event.metadata or {}).get(ADDED) is not None:
                begins = event.seq
                continue
            item = _call(event) if own is None else _own_call(event, own)
            kinds[event.call_id or ""] = item["type"]
        elif event.type == "tool.result":
            kind = kinds.get(event.call_id or "", "function_call")
            item = _result(event, kind) if own is None else _own_result(event, own)
        if item is not None:
            found.append((begins or event.seq, item))
            begins = None
    return found


def _own_message(event: EventOut, own: Mapping[str, Any]) -> dict[str, Any]:
    if (own.get("part") or {}).get("item") is True and isinstance(event.content, list):
        return event.content[0]
    return {"role": ROLES[event.type], **(own.get("head") or {}), "content": event.content}


def _own_call(event: EventOut, own: Mapping[str, Any]) -> dict[str, Any]:
    rest = (own.get("part") or {}).get("item") or {}
    item = {"type": "function_call", "call_id": own.get("call_id", event.call_id), **rest}
    if item["type"] == "custom_tool_call":
        return {**item, "name": event.tool, "input": event.arguments["input"]}
    if item["type"] != "function_call":
        return {**item, **event.arguments}
    return {**item, "name": event.tool, **({} if event.arguments is None else {"arguments": event.arguments})}


def _own_result(event: EventOut, own: Mapping[str, Any]) -> dict[str, Any]:
    part = own.get("part") or {}
    item = {"type": "function_call_output", "call_id": own.get("call_id", event.call_id), **(part.get("item") or {})}
    if part.get("by_id"):
        del item["call_id"]
    if event.content is not None or item["type"] in TEXT_OUTPUTS:
        item["output"] = event.content[0] if part.get("single") and event.content else event.content
    return item


def _result(event: EventOut, kind: str) -> dict[str, Any]:
    output: Any = event.content or ""
    if kind in SINGLE_OUTPUTS and isinstance(output, list) and len(output) == 1:
        output = output[0]
    return {"type": f"{kind}_output", "call_id": event.call_id, "output": output}


def _message(role: str, content: str | list[dict[str, Any]] | None) -> dict[str, Any] | None:
    if isinstance(content, list) and len(content) == 1 and content[0].get("type") not in TEXT_PARTS:
        return None if content[0].get("type") == "reasoning" else content[0]  # a complete item
    shape = {"type": "message"} if role == "assistant" and isinstance(content, list) else {}  # as in a model's output
    return {**shape, "role": role, "content": content or ""}


def _call(event: EventOut) -> dict[str, Any]:
    about = {"call_id": event.call_id}
    if not isinstance(event.arguments, Mapping):
        return {"type": "function_call", **about, "name": event.tool, "arguments": event.arguments or "{}"}
    if event.tool in OWN_KINDS:
        return {"type": f"{event.tool}_call", **about, **event.arguments}
    if set(event.arguments) == {"input"}:
        return {"type": "custom_tool_call", **about, "name": event.tool, "input": event.arguments["input"]}
    return {"type": "function_call", **about, "name": event.tool, "arguments": json.dumps(event.arguments)}
