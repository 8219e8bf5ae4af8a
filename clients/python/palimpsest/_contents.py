"""Gemini's contents as messages of blocks, and the plan for those carried out on the contents."""

from __future__ import annotations

import base64
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from google.genai import types

from palimpsest import _blocks
from palimpsest._adapt import Fit, change


class Shaper:
    """Writes contents as the server reads them.

    ADK takes the ids of calls away before Gemini sees them, which pairs calls and results by name and place. So do we:
    such a call is known by its number in the conversation.
    """

    def __init__(self) -> None:
        self._open: defaultdict[str | None, list[str]] = defaultdict(list)
        self._count = 0

    def messages(self, contents: Sequence[types.Content]) -> list[dict[str, Any]]:
        """A message for each content."""
        return [
            _blocks.message(
                "assistant" if one.role == "model" else "user", [self.block(part) for part in one.parts or ()]
            )
            for one in contents
        ]

    def block(self, part: types.Part) -> _blocks.Block | None:
        """The block for a part; None for one that says nothing."""
        if part.function_call is not None:
            self._count += 1
            call_id = part.function_call.id or f"call-{self._count}"
            self._open[part.function_call.name].append(call_id)
            return _blocks.call(call_id, part.function_call.name or "", part.function_call.args)
        if part.function_response is not None:
            waiting = self._open[part.function_response.name]
            call_id = part.function_response.id or (waiting[0] if waiting else f"result-{self._count}")
            if call_id in waiting:
                waiting.remove(call_id)
            return _result(call_id, part.function_response.response or {})
        if part.thought:
            return _blocks.thinking(part.text)
        if part.inline_data is not None and part.inline_data.data is not None:
            data = base64.b64encode(part.inline_data.data).decode()
            kind = part.inline_data.mime_type or "application/octet-stream"
            if kind.startswith("image/"):
                return _blocks.image(f"data:{kind};base64,{data}", kind)
            return {"type": "document", "source": {"type": "base64", "media_type": kind, "data": data}}
        if part.file_data is not None:
            return {"type": "document", "source": {"type": "url", "url": part.file_data.file_uri}}
        if part.executable_code is not None:
            return _blocks.text(part.executable_code.code)
        if part.code_execution_result is not None:
            return _blocks.text(part.code_execution_result.output)
        return _blocks.text(part.text)


def _result(call_id: str, response: Mapping[str, Any]) -> _blocks.Block:
    """The result of a call; ADK wraps what is text in an object with one field."""
    for name in ("result", "output", "error"):
        if response.keys() == {name} and isinstance(response[name], str):
            return _blocks.result(call_id, response[name], is_error=name == "error")
    return _blocks.result(call_id, response)


def system(instruction: Any) -> str | None:
    """The text of a system instruction."""
    if isinstance(instruction, str) or instruction is None:
        return instruction
    if isinstance(instruction, types.Content):
        return "\n\n".join(part.text for part in instruction.parts or () if part.text)
    return "\n\n".join(str(one) for one in instruction)


def tools(given: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """The definitions of functions; what the provider runs by itself has none."""
    for tool in given:
        for one in getattr(tool, "function_declarations", None) or ():
            schema = one.parameters_json_schema
            if schema is None and one.parameters is not None:
                schema = one.parameters.model_dump(mode="json", exclude_none=True)
            yield {"name": one.name, "description": one.description or "", "input_schema": schema or {"type": "object"}}


def applied(fit: Fit, own: Sequence[types.Content]) -> list[types.Content]:
    """The contents that fit."""
    shaper = Shaper()
    ids = {id(part): (shaper.block(part) or {}) for one in own for part in one.parts or ()}

    def replaced(content: types.Content, step: Mapping[str, Any]) -> types.Content | None:
        parts: list[types.Part] = []
        for part in content.parts or ():
            block = ids[id(part)]
            action, text = change(step, block.get("id") or block.get("tool_use_id"))
            if action == "keep":
                parts.append(part)
            elif action == "replace" and not (part.text and any(one.text for one in parts)):
                parts += _changed(part, text or "")
        return content.model_copy(update={"parts": parts}) if parts else None

    return fit.applied(own, replaced, lambda one: _inserted(one, own, ids))


def _changed(part: types.Part, text: str) -> list[types.Part]:
    if part.function_call is not None:
        call = part.function_call.model_copy(update={"args": dict(_blocks.arguments_of(text))})
        return [part.model_copy(update={"function_call": call})]
    if part.function_response is not None:
        response = part.function_response.model_copy(update={"response": {"result": text}})
        return [part.model_copy(update={"function_response": response})]
    return [types.Part(text=text)] if part.text and not part.thought else []


def _inserted(one: Mapping[str, Any], own: Sequence[types.Content], ids: Mapping[int, Any]) -> types.Content:
    if one["role"] != "tool":
        return types.Content(role="user", parts=[types.Part(text=one["text"])])
    call = types.FunctionCall()
    for part in (part for content in own for part in content.parts or ()):
        if part.function_call is not None and ids[id(part)]["id"] == one["call_id"]:
            call = part.function_call
    response = types.FunctionResponse(id=call.id, name=call.name, response={"result": one["text"]})
    return types.Content(role="user", parts=[types.Part(function_response=response)])
