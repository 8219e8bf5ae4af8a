"""What a log holds, as input items of OpenAI's Responses API."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from palimpsest.types import EventOut

TEXT_PARTS = frozenset({"text", "input_text", "output_text", "refusal", "input_image", "input_file", "input_audio"})
ROLES = {"user.message": "user", "assistant.message": "assistant", "system.message": "system"}
SINGLE_OUTPUTS = frozenset({"computer_call"})
OWN_KINDS = frozenset({"computer", "local_shell", "shell", "apply_patch", "tool_search"})
"""Tools of the provider whose calls are items of a kind of their own."""


def items_of(events: Iterable[EventOut]) -> list[tuple[int, dict[str, Any]]]:
    """The conversation as items, each with the seq of its event.

    Reasoning is left out: it belongs to items by ids that a log does not give back, and to turns that are over.
    """
    kinds: dict[str, str] = {}
    found: list[tuple[int, dict[str, Any]]] = []
    for event in events:
        item: dict[str, Any] | None = None
        if event.type in ROLES:
            item = _message(ROLES[event.type], event.content)
        elif event.type == "tool.call":
            item = _call(event)
            kinds[event.call_id or ""] = item["type"]
        elif event.type == "tool.result":
            kind = kinds.get(event.call_id or "", "function_call")
            output: Any = event.content or ""
            if kind in SINGLE_OUTPUTS and isinstance(output, list) and len(output) == 1:
                output = output[0]
            item = {"type": f"{kind}_output", "call_id": event.call_id, "output": output}
        if item is not None:
            found.append((event.seq, item))
    return found


def _message(role: str, content: str | list[dict[str, Any]] | None) -> dict[str, Any] | None:
    if isinstance(content, list) and len(content) == 1 and content[0].get("type") not in TEXT_PARTS:
        return None if content[0].get("type") == "reasoning" else content[0]  # an item that was kept whole
    shape = (
        {"type": "message"} if role == "assistant" and isinstance(content, list) else {}
    )  # as a model's output has it
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
