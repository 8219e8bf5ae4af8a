"""Tool definitions: read from any provider's shape, written in each provider's own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from app.core.log.events import Json
from app.core.render.formats.names import tool_name, with_hash

NativeFormat = Literal["openai", "openai-responses", "anthropic"]
"""The formats of providers; each has its own shape of tool definitions."""


@dataclass(frozen=True, slots=True)
class _Tool:
    """A function tool. `shape` is the format it came in, None for the neutral one."""

    shape: NativeFormat | None
    name: str
    description: Json
    schema: Json
    strict: Json


def write_tools(tools: Sequence[Mapping[str, Json]], shape: NativeFormat) -> list[dict[str, Json]]:
    """The definitions in one provider's shape: its own as they were, without other providers' built-in tools.

    The client's `cache_control` is removed. Names are unique: of two tools with one name the first stays, and a name
    that equals another only after cleaning gets a hash.
    """
    names = tool_names(tools)
    seen: set[str] = set()
    written = []
    for tool in tools:
        parsed = _parse(tool)
        if parsed is None:
            if _builtin_of(tool) == shape:
                written.append(_unmarked(tool))
            continue
        if parsed.name in seen:
            continue
        seen.add(parsed.name)
        name = names[parsed.name]
        verbatim = parsed.shape == shape and name == parsed.name
        written.append(_unmarked(tool) if verbatim else _write(parsed, name, shape))
    return written


def tool_names(tools: Sequence[Mapping[str, Json]]) -> Mapping[str, str]:
    """The name of each function tool in a request, by its own name; calls must use the same names."""
    own_names = [parsed.name for tool in tools if (parsed := _parse(tool))]
    taken = {name for name in own_names if tool_name(name) == name}
    names: dict[str, str] = {}
    for own_name in own_names:
        if own_name in names:
            continue
        name = tool_name(own_name)
        if name != own_name and name in taken:
            name = with_hash(name, own_name)
        taken.add(name)
        names[own_name] = name
    return names


def _unmarked(tool: Mapping[str, Json]) -> dict[str, Json]:
    return {name: value for name, value in tool.items() if name != "cache_control"}


def _parse(tool: Mapping[str, Json]) -> _Tool | None:
    function = tool.get("function")
    if isinstance(function, Mapping):
        return _tool("openai", function, "parameters")
    if "input_schema" in tool:
        return _tool("anthropic", tool, "input_schema")
    if tool.get("type") == "function":
        return _tool("openai-responses", tool, "parameters")
    if "type" not in tool and isinstance(tool.get("name"), str):
        return _tool(None, tool, "parameters")
    return None


def _tool(shape: NativeFormat | None, value: Mapping[str, Json], schema: str) -> _Tool:
    return _Tool(
        shape, str(value.get("name") or "tool"), value.get("description"), value.get(schema), value.get("strict")
    )


def _builtin_of(tool: Mapping[str, Json]) -> NativeFormat:
    """Whose built-in tool it is: Anthropic's have a dated type and a name, OpenAI's chat has only custom ones."""
    kind = str(tool.get("type", ""))
    if kind == "custom" and isinstance(tool.get("custom"), Mapping):
        return "openai"
    return "anthropic" if kind[-8:].isdigit() and "name" in tool else "openai-responses"


def _write(tool: _Tool, name: str, shape: NativeFormat) -> dict[str, Json]:
    described = {} if tool.description is None else {"description": tool.description}
    schema = tool.schema if isinstance(tool.schema, Mapping) else {"type": "object", "properties": {}}
    strict = {} if tool.strict is None else {"strict": tool.strict}
    if shape == "anthropic":
        return {"name": name, **described, "input_schema": {"type": "object", **schema}}
    function = {"name": name, **described, "parameters": schema, **strict}
    return (
        {"type": "function", **function} if shape == "openai-responses" else {"type": "function", "function": function}
    )
