"""Gemini's contents: converted for the server, and changed by its plan."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from google.genai import types

from palimpsest import _blocks
from palimpsest._adapt import FittedContext, part_change
from palimpsest.formats.gemini import call_id


def messages(contents: Sequence[types.Content]) -> Iterator[dict[str, Any]]:
    """Return the contents as JSON; values in tool results that JSON cannot encode become text."""
    return (one.model_dump(mode="json", exclude_none=True, fallback=str) for one in contents)


def call_ids(contents: Sequence[types.Content]) -> dict[int, str]:
    """Return the ids that the server gives calls and responses, by `id()` of their parts.

    ADK removes the ids of calls before Gemini sees them, and Gemini pairs calls and responses by name and position. The
    server does the same, and numbers the calls of each name.
    """
    found: dict[int, str] = {}
    waiting: defaultdict[str, list[str]] = defaultdict(list)
    counts: Counter[str] = Counter()
    for part in (part for content in contents for part in content.parts or ()):
        if part.function_call is not None:
            name = part.function_call.name or ""
            found[id(part)] = call_id(part.function_call.id, name, counts)
            waiting[name].append(found[id(part)])
        elif part.function_response is not None:
            name, own = part.function_response.name or "", part.function_response.id
            among = waiting[name]
            answered = own or (among[0] if among else call_id(None, name, counts))
            if answered in among:
                among.remove(answered)
            found[id(part)] = answered
    return found


def system(instruction: Any) -> str | None:
    """Return the text of a system instruction."""
    if isinstance(instruction, str) or instruction is None:
        return instruction
    if isinstance(instruction, types.Content):
        return "\n\n".join(part.text for part in instruction.parts or () if part.text)
    return "\n\n".join(str(one) for one in instruction)


def tools(given: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the tools' definitions, without functions and connections, which the SDK converts to definitions later."""
    return [one.model_dump(mode="json", exclude_none=True) for one in given if isinstance(one, types.Tool)]


def apply_fit(fit: FittedContext, own: Sequence[types.Content]) -> list[types.Content]:
    """Return the contents with the plan applied."""
    ids = call_ids(own)

    def replaced(content: types.Content, step: Mapping[str, Any]) -> types.Content | None:
        parts: list[types.Part] = []
        for part in content.parts or ():
            action, text = part_change(step, ids.get(id(part)))
            if action == "keep":
                parts.append(part)
            elif action == "replace" and not (part.text and any(one.text for one in parts)):
                parts += _changed(part, text or "")
        return content.model_copy(update={"parts": parts}) if parts else None

    return fit.apply(own, replaced, lambda one: _inserted(one, own, ids))


def _changed(part: types.Part, text: str) -> list[types.Part]:
    if part.function_call is not None:
        call = part.function_call.model_copy(update={"args": dict(_blocks.arguments_of(text))})
        return [part.model_copy(update={"function_call": call})]
    if part.function_response is not None:
        response = part.function_response.model_copy(update={"response": {"result": text}})
        return [part.model_copy(update={"function_response": response})]
    return [types.Part(text=text)] if part.text and not part.thought else []


def _inserted(one: Mapping[str, Any], own: Sequence[types.Content], ids: Mapping[int, str]) -> types.Content:
    if one["role"] != "tool":
        return types.Content(role="user", parts=[types.Part(text=one["text"])])
    call = types.FunctionCall()
    for part in (part for content in own for part in content.parts or ()):
        if part.function_call is not None and ids[id(part)] == one["call_id"]:
            call = part.function_call
    response = types.FunctionResponse(id=call.id, name=call.name, response={"result": one["text"]})
    return types.Content(role="user", parts=[types.Part(function_response=response)])
