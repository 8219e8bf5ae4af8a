"""Messages of OpenAI's chat completions, changed as a plan says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from palimpsest._adapt import part_change

Message = dict[str, Any]


def replaced(own: Message, step: Mapping[str, Any]) -> Message | None:
    """Return a changed copy of a message; None if nothing of it is left."""
    if own["role"] == "tool":
        return {**own, "content": part_change(step, own.get("tool_call_id"))[1]}
    changed = dict(own)
    is_one_call = bool(own.get("tool_calls")) and not step.get("parts")  # its new text is the call's
    action, text = ("keep", None) if is_one_call else part_change(step)
    if action != "keep":
        changed["content"] = text if action == "replace" else None
    if own.get("tool_calls"):
        calls = [one for call in own["tool_calls"] if (one := _call(call, step)) is not None]
        changed["tool_calls"] = calls
        if not calls:
            del changed["tool_calls"]
    return changed if changed.get("content") or changed.get("tool_calls") else None


def _call(own: Mapping[str, Any], step: Mapping[str, Any]) -> dict[str, Any] | None:
    action, text = part_change(step, own["id"])
    if action == "replace":
        return {**own, "function": {**own["function"], "arguments": text}}
    return dict(own) if action == "keep" else None


def inserted(one: Mapping[str, Any]) -> Message:
    """Return a message that a plan inserts."""
    if one["role"] == "tool":
        return {"role": "tool", "tool_call_id": one["call_id"], "content": one["text"]}
    return {"role": one["role"], "content": one["text"]}
