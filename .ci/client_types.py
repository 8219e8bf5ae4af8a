"""Write the types of the Python client from the API's document: `python .ci/client_types.py`, part of `make openapi`.

A response's schema becomes a frozen dataclass, a request's a TypedDict. Each type is in a module named after
the resource or the wing of its schema.
"""

import importlib
import json
import keyword
import re
import subprocess
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parent.parent
DOCUMENT: Final = ROOT / "openapi" / "palimpsest.json"
FOLDER: Final = ROOT / "clients" / "python" / "palimpsest" / "types"
ELSEWHERE: Final = {"EventType": "events", "PolicyDocument": "policies"}
"""Modules of schemas that the server derives from values of its core."""
STREAMED: Final = ("EpochChange", "CompactionChange")
"""Schemas of streamed messages, which no response names."""
NOTE: Final = "Written by `make openapi` from the API's document."
PLAIN: Final = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "null": "None",
    "object": "dict[str, Any]",
}

Schema = Mapping[str, Any]


class Writer:
    """The types of one document."""

    def __init__(self, document: Schema) -> None:
        self._schemas: dict[str, Schema] = dict(document["components"]["schemas"])
        operations = [
            operation
            for path in document["paths"].values()
            for operation in path.values()
            if isinstance(operation, Mapping)
        ]
        bodies = [body for one in operations for body in _contents(one.get("requestBody", {}))]
        answers = [
            body
            for one in operations
            for status, answer in one["responses"].items()
            if status.startswith("2")
            for body in _contents(answer)
        ]
        self._taken: set[str] = set()
        for body in bodies:
            named = self._schemas.get(_named(body) or "", body)
            for inner in named.get("properties", {}).values():
                self._reach(inner, self._taken)
        self._given: set[str] = set(STREAMED)
        for body in [*answers, *(self._schemas[name] for name in STREAMED)]:
            self._reach(body, self._given)
        self._module = _modules() | ELSEWHERE
        self._extra: list[str] = []

    def _reach(self, schema: Any, found: set[str]) -> None:
        """Add the names of all schemas that this one refers to."""
        if isinstance(schema, list):
            for one in schema:
                self._reach(one, found)
        elif isinstance(schema, Mapping):
            name = _named(schema)
            if name is not None and name not in found:
                found.add(name)
                self._reach(self._schemas[name], found)
            for one in schema.values():
                self._reach(one, found)

    def files(self) -> dict[str, str]:
        """Return the text of each module, by its name. Raises SystemExit for a schema that belongs to none."""
        names = [name for name in self._schemas if name in self._taken | self._given]
        if homeless := sorted(set(names) - self._module.keys()):
            raise SystemExit(
                f"no group of types for {', '.join(homeless)}: declare schemas in `routes.py`, `schemas.py` or a "
                "folder `schemas` of their resource or wing, or in a resource's one module, or name their group in "
                "ELSEWHERE in .ci/client_types.py"
            )
        rooms: dict[str, list[str]] = defaultdict(list)
        for name in names:
            rooms[self._module[name]].append(name)
        texts = {room: self._room(room, inside) for room, inside in sorted(rooms.items())}
        return texts | {"__init__": self._index(rooms)}

    def _room(self, room: str, names: list[str]) -> str:
        written = "\n\n".join(self._one(name) for name in self._in_order(names))
        needed: dict[str, set[str]] = defaultdict(set)
        for name in sorted(self._taken | self._given):
            if self._module[name] != room and re.search(rf"\b{name}\b", _code(written)):
                needed[self._module[name]].add(name)
        typing = [word for word in ("Any", "Literal", "TypedDict") if re.search(rf"\b{word}\b", _code(written))]
        head = [f'"""Types of `{room}`. {NOTE}"""', ""]
        if "@dataclass" in written:
            head.append(f"from dataclasses import dataclass{', field' if 'field(' in written else ''}")
        if "datetime" in _code(written):
            head.append("from datetime import datetime")
        head += [f"from typing import {', '.join(typing)}", ""] if typing else [""]
        if "(Model)" in written:
            head.append("from palimpsest._model import Model")
        head += [f"from palimpsest.types.{one} import {', '.join(sorted(n))}" for one, n in sorted(needed.items())]
        return _formatted("\n".join(head) + "\n\n\n" + written)

    def _in_order(self, names: list[str]) -> list[str]:
        """Return the names with each schema after those that it refers to."""
        done: list[str] = []

        def put(name: str, above: tuple[str, ...] = ()) -> None:
            reached: set[str] = set()
            self._reach(self._schemas[name], reached)
            for one in sorted(reached & set(names) - {name, *above, *done}):
                put(one, (*above, name))
            if name not in done:
                done.append(name)

        for name in names:
            put(name)
        return done

    def _index(self, rooms: Mapping[str, list[str]]) -> str:
        lines = [f'"""Types of what the API takes and gives. {NOTE}"""', ""]
        lines += [f"from palimpsest.types.{room} import {', '.join(sorted(n))}" for room, n in sorted(rooms.items())]
        everything = sorted(name for names in rooms.values() for name in names)
        return _formatted("\n".join(lines) + f"\n\n__all__ = {everything!r}\n")

    def _one(self, name: str) -> str:
        schema = self._schemas[name]
        if "properties" not in schema:
            return f"{name} = {self._type(schema, name)}\n{_doc(schema)}"
        self._extra = []
        written = self._typed_dict(name, schema) if name in self._taken else self._dataclass(name, schema)
        return "\n\n".join([*self._extra, written])

    def _dataclass(self, name: str, schema: Schema) -> str:
        required = set(schema.get("required", ()))
        lines = [
            "@dataclass(frozen=True, kw_only=True)",
            f"class {name}(Model):",
            textwrap.indent(_doc(schema), "    "),
        ]
        for key, inner in schema["properties"].items():
            kind, plain = self._type(inner, name), _attribute(key)
            optional = key not in required
            if optional and "None" not in kind and kind != "Any":
                kind += " | None"
            more = [] if not optional else ["default=None"]
            if plain != key:
                more.append(f"metadata={{'name': {key!r}}}")
            value = "" if not more else " = None" if more == ["default=None"] else f" = field({', '.join(more)})"
            lines += [f"    {plain}: {kind}{value}", textwrap.indent(_doc(inner), "    ")]
        return "\n".join(line for line in lines if line.strip()) + "\n"

    def _typed_dict(self, name: str, schema: Schema) -> str:
        """Write required fields in a class of their own, which Python 3.10 needs."""
        required = [key for key in schema["properties"] if key in schema.get("required", ())]
        optional = [key for key in schema["properties"] if key not in required]
        if not (required and optional):
            return self._entries(
                name, "TypedDict" if required else "TypedDict, total=False", schema, [*required, *optional]
            )
        first = self._entries(f"_{name}Required", "TypedDict", {"properties": schema["properties"]}, required)
        return f"{first}\n\n{self._entries(name, f'_{name}Required, total=False', schema, optional)}"

    def _entries(self, name: str, bases: str, schema: Schema, keys: list[str]) -> str:
        lines = [f"class {name}({bases}):", textwrap.indent(_doc(schema), "    ")]
        for key in keys:
            inner = schema["properties"][key]
            lines += [f"    {key}: {self._type(inner, name, key)}", textwrap.indent(_doc(inner), "    ")]
        return "\n".join(line for line in lines if line.strip()) + "\n"

    def _type(self, schema: Schema, owner: str, key: str = "") -> str:
        name = _named(schema)
        if name is not None:
            return name
        if "anyOf" in schema:
            return " | ".join(dict.fromkeys(self._type(one, owner, key) for one in schema["anyOf"]))
        if "const" in schema:
            return f"Literal[{schema['const']!r}]"
        if "enum" in schema:
            return f"Literal[{', '.join(map(repr, schema['enum']))}]"
        kind = schema.get("type")
        if kind == "array":
            return f"list[{self._type(schema.get('items', {}), owner, key)}]"
        if kind == "object" and "properties" in schema:
            inner = owner.removesuffix("Document") + "".join(word.title() for word in key.split("_"))
            described = {"description": f"`{key}` of `{owner}`.", **schema}
            self._extra.append(self._entries(inner, "TypedDict, total=False", described, list(schema["properties"])))
            return inner
        if kind == "object" and isinstance(schema.get("additionalProperties"), Mapping):
            return f"dict[str, {self._type(schema['additionalProperties'], owner, key)}]"
        if schema.get("format") == "date-time":
            return "str | datetime" if owner in self._taken else "datetime"
        return PLAIN.get(kind or "", "Any")


def _contents(holder: Schema) -> Iterator[Schema]:
    for content in holder.get("content", {}).values():
        if "schema" in content:
            yield content["schema"]


def _named(schema: Schema) -> str | None:
    reference = schema.get("$ref")
    return reference.rpartition("/")[2] if isinstance(reference, str) else None


def _modules() -> dict[str, str]:
    """Return the module of each of the server's schemas."""
    found: dict[str, str] = {}
    for path in sorted((ROOT / "app").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if path.stem in ("routes", "schemas", "fields") or "schemas" in parts or parts[1:-1] == ("resources",):
            module = importlib.import_module(".".join(parts))
            room = parts[2] if parts[1] in ("resources", "wings") else parts[-1]
            found |= {
                name: room for name, one in vars(module).items() if getattr(one, "__module__", "") == module.__name__
            }
    return found


def _attribute(key: str) -> str:
    name = re.sub(r"\W", "_", key)
    return f"{name}_" if keyword.iskeyword(name) else name


def _doc(schema: Schema) -> str:
    """Return the description as a docstring, wrapped."""
    text = schema.get("description", "").replace("\\", "\\\\").strip()
    if not text:
        return ""
    paragraphs = [textwrap.fill(" ".join(one.split()), 108) for one in text.split("\n\n")]
    body = "\n\n".join(paragraphs)
    return f'"""{body}{" " if body.endswith(chr(34)) else ""}"""' if "\n" not in body else f'"""{body}\n"""'


def _code(text: str) -> str:
    """Return the text without its docstrings."""
    return re.sub(r'""".*?"""', "", text, flags=re.DOTALL)


def _formatted(text: str) -> str:
    command = [str(Path(sys.executable).parent / "ruff"), "format", "--quiet", "--line-length", "120", "-"]
    return subprocess.run(  # noqa: S603 - ruff itself
        command, input=text, capture_output=True, text=True, check=True
    ).stdout


def files() -> dict[str, str]:
    """Return the text of each module of the client's types, by its name."""
    return Writer(json.loads(DOCUMENT.read_text(encoding="utf-8"))).files()


if __name__ == "__main__":
    written = files()
    FOLDER.mkdir(exist_ok=True)
    for path in FOLDER.glob("*.py"):
        path.unlink()
    for module, text in written.items():
        (FOLDER / f"{module}.py").write_text(text, encoding="utf-8")
