"""Tools in requests: their names within a provider's rules, and their definitions."""

import hashlib
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, get_args

from app.core.log.events import Json
from app.core.render.formats.parts import without

_ILLEGAL: Final = re.compile(r"[^a-zA-Z0-9_-]")
NAME_CHARS_MAX: Final = 64
_ILLEGAL_DOTTED: Final = re.compile(r"[^a-zA-Z0-9_.:-]")
DOTTED_CHARS_MAX: Final = 128


def tool_name(name: str | None, names: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the name from `names`, else `name` made legal everywhere: at most 64 letters, digits, `_` and `-`."""
    return names.get(name or "") or _ILLEGAL.sub("_", name or "tool")[:NAME_CHARS_MAX]


def dotted_name(name: str | None, names: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the name from `names`, else `name` made legal for Gemini, which allows dots, colons and 128 characters,
    but no digit or dash at the start. A longer name is cut to NAME_CHARS_MAX, as for every provider."""
    if known := names.get(name or ""):
        return known
    legal = _ILLEGAL_DOTTED.sub("_", name or "tool")
    legal = legal if legal[0].isalpha() or legal[0] == "_" else f"_{legal}"
    return legal if len(legal) <= DOTTED_CHARS_MAX else legal[:NAME_CHARS_MAX]


class Assigned(NamedTuple):
    """The number of ids assigned at some time, and those of them that wait for results."""

    used: int
    waiting: Mapping[str, tuple[str, ...]]


@dataclass(slots=True)
class CallIds:
    """The ids of one request's calls, assigned in order, so that appending never changes an earlier one.

    With `unique`, no id is assigned twice in a request. Otherwise the ids of finished calls may be used again, but no
    two calls that wait for their results have the same id.
    """

    chars_max: int
    unique: bool
    _used: dict[str, None] = field(default_factory=dict)
    _waiting: dict[str, deque[str]] = field(default_factory=dict)

    def call(self, call_id: str, seq: int, *, own: bool) -> str:
        """Assign the id of a new call. If `own`, the id is from this provider, so only its length can be wrong.

        An illegal id is cleaned and its hash appended; to a reused id its seq is appended.
        """
        legal = call_id
        if len(call_id) > self.chars_max or not call_id or (_ILLEGAL.search(call_id) and (self.unique or not own)):
            legal = _marked(_ILLEGAL.sub("_", call_id), call_id, self.chars_max)
        legal = self._unused(legal, seq)
        self._used[legal] = None
        self._waiting.setdefault(call_id, deque()).append(legal)
        return legal

    def result(self, call_id: str) -> str:
        """Return the id assigned to a result's call: the first with this `call_id` that waits for a result."""
        waiting = self._waiting.get(call_id)
        if not waiting:
            return call_id
        assigned = waiting.popleft()
        if not waiting:
            del self._waiting[call_id]
        if not self.unique:
            self._used.pop(assigned, None)
        return assigned

    def copy(self) -> "CallIds":
        """Return an independent copy."""
        waiting = {call_id: deque(ids) for call_id, ids in self._waiting.items()}
        return CallIds(self.chars_max, self.unique, self._used.copy(), waiting)

    def mark(self) -> Assigned:
        """Return a mark for `restored`."""
        return Assigned(len(self._used), {call_id: tuple(ids) for call_id, ids in self._waiting.items()})

    def restored(self, mark: Assigned) -> "CallIds":
        """Return a copy of the assignments as of one of its marks; only with `unique`, where no id is forgotten."""
        waiting = {call_id: deque(ids) for call_id, ids in mark.waiting.items()}
        whole = mark.used == len(self._used)
        used = self._used.copy() if whole else dict.fromkeys(islice(self._used, mark.used))
        return CallIds(self.chars_max, self.unique, used, waiting)

    def _unused(self, legal: str, seq: int) -> str:
        if legal not in self._used:
            return legal
        suffixes = (f"_{seq}_{number}" if number else f"_{seq}" for number in count())
        names = (legal[: self.chars_max - len(suffix)] + suffix for suffix in suffixes)
        return next(name for name in names if name not in self._used)


def _marked(name: str, original: str, chars_max: int) -> str:
    """Return `name` with a hash of the original name appended, at most `chars_max` long."""
    return f"{name[: chars_max - 13]}_{hashlib.sha256(original.encode()).hexdigest()[:12]}"


NativeFormat = Literal["openai", "openai-responses", "anthropic", "gemini"]
"""The formats of providers; each has its own shape of tool definitions."""


_DECLARATIONS: Final = ("functionDeclarations", "function_declarations")
_JSON_SCHEMAS: Final = ("parametersJsonSchema", "parameters_json_schema")
_GEMINI_TOOLS: Final = frozenset(
    {"googleSearch", "google_search", "googleSearchRetrieval", "google_search_retrieval", "codeExecution"}
    | {"code_execution", "urlContext", "url_context", "googleMaps", "google_maps", "computerUse", "computer_use"}
    | {"fileSearch", "file_search", "enterpriseWebSearch", "enterprise_web_search", "retrieval"}
)


@dataclass(frozen=True, slots=True)
class _Tool:
    """A function tool. `shape` is the format it came in, None for the neutral one."""

    shape: NativeFormat | None
    name: str
    description: Json
    schema: Json
    strict: Json


def write_tools(tools: Sequence[Mapping[str, Json]], shape: NativeFormat) -> list[dict[str, Json]]:
    """Return the definitions in one provider's shape: its own verbatim, without other providers' built-in tools.

    The client's `cache_control` is removed. Names are unique: of two tools with one name the first is kept, and a name
    that equals another only after cleaning gets a hash.
    """
    if shape == "gemini":
        return _gemini_tools(tools)
    names = tool_names(tools)
    seen: set[str] = set()
    written = []
    for tool, parsed in _flat(tools):
        if parsed is None:
            if _builtin_of(tool) == shape:
                written.append(without(tool, "cache_control"))
            continue
        if parsed.name in seen:
            continue
        seen.add(parsed.name)
        name = names[parsed.name]
        verbatim = parsed.shape == shape and name == parsed.name
        written.append(without(tool, "cache_control") if verbatim else _write(parsed, name, shape))
    return written


def definition(tool: Mapping[str, Json], shape: NativeFormat | None) -> dict[str, Json]:
    """Return the definition of a tool in one provider's shape; None: in each, by its name."""
    if shape is None:
        return {each: definition(tool, each) for each in get_args(NativeFormat)}
    return write_tools([tool], shape)[0]


def tool_names(tools: Sequence[Mapping[str, Json]], legal: Callable[[str], str] = tool_name) -> Mapping[str, str]:
    """Return the request's name of each function tool, by its own name; calls must use the same. `legal` returns a name
    that the provider accepts."""
    own_names = [parsed.name for _, parsed in _flat(tools) if parsed]
    taken = {name for name in own_names if legal(name) == name}
    names: dict[str, str] = {}
    for own_name in own_names:
        if own_name in names:
            continue
        name = legal(own_name)
        if name != own_name and name in taken:
            name = _marked(name, own_name, NAME_CHARS_MAX)
        taken.add(name)
        names[own_name] = name
    return names


def _flat(tools: Sequence[Mapping[str, Json]]) -> Iterator[tuple[Mapping[str, Json], _Tool | None]]:
    """Yield the definitions one by one, those in Gemini's lists too. None for a tool that is not a function."""
    for tool in tools:
        declared = _declarations(tool)
        if declared is None:
            yield tool, _parse(tool)
            continue
        for declaration in declared:
            yield declaration, _declared(declaration)


def _declarations(tool: Mapping[str, Json]) -> Sequence[Mapping[str, Json]] | None:
    """Return the declarations of functions in one of Gemini's tools; None for any other tool."""
    found = next((tool[name] for name in _DECLARATIONS if isinstance(tool.get(name), list)), None)
    return None if found is None else [one for one in found if isinstance(one, Mapping)]


def _declared(tool: Mapping[str, Json]) -> _Tool:
    schema = next((tool[name] for name in _JSON_SCHEMAS if name in tool), None)
    if schema is None and isinstance(tool.get("parameters"), Mapping):
        schema = _json_schema(tool["parameters"])
    return _Tool("gemini", str(tool.get("name") or "tool"), tool.get("description"), schema, None)


def _json_schema(schema: Json) -> Json:
    """Return the JSON Schema of a schema in Gemini's notation, which has the names of types in capitals."""
    if isinstance(schema, list):
        return [_json_schema(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    written = {name: _json_schema(child) for name, child in schema.items()}
    if isinstance(kind := schema.get("type"), str):
        written["type"] = kind.lower()
    return written


def _gemini_tools(tools: Sequence[Mapping[str, Json]]) -> list[dict[str, Json]]:
    """Return the definitions in Gemini's shape: its own lists verbatim, all others in one list where the first was."""
    names = tool_names(tools, dotted_name)
    seen: set[str] = set()
    written: list[dict[str, Json]] = []
    others: list[dict[str, Json]] = []
    for tool in tools:
        declared = _declarations(tool)
        if declared is None and (parsed := _parse(tool)) is not None:
            if parsed.name in seen:
                continue
            if not others:
                written.append({"functionDeclarations": others})
            seen.add(parsed.name)
            others.append(_write(parsed, names[parsed.name], "gemini"))
        elif declared is not None:
            kept = _renamed(declared, names, seen)
            key = next(name for name in _DECLARATIONS if name in tool)
            shown = {**tool, key: kept} if kept else without(tool, key)
            if shown:
                written.append(shown)
        elif _builtin_of(tool) == "gemini":
            written.append(dict(tool))
    return written


def _renamed(
    declared: Sequence[Mapping[str, Json]], names: Mapping[str, str], seen: set[str]
) -> list[Mapping[str, Json]]:
    """Return declarations under their names in the request, without those that were `seen`."""
    kept = []
    for declaration in declared:
        name = _declared(declaration).name
        if name not in seen:
            seen.add(name)
            same = declaration.get("name") == names[name]
            kept.append(declaration if same else {**declaration, "name": names[name]})
    return kept


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
    """Return the provider of a built-in tool: Anthropic's have a dated type and a name, OpenAI's chat has only custom
    ones, Gemini's are fields of one object."""
    if tool and tool.keys() <= _GEMINI_TOOLS:
        return "gemini"
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
    if shape == "gemini":
        return {"name": name, **described, "parametersJsonSchema": schema}
    function = {"name": name, **described, "parameters": schema, **strict}
    return (
        {"type": "function", **function} if shape == "openai-responses" else {"type": "function", "function": function}
    )
