"""`python .ci/promise.py [OLD.json NEW.json]`: print the changes of the API since the last release that break callers.

Fails if the changelog does not name a change under `### Upgrading` since then. docs/compatibility.md is the promise.
"""

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

ROOT: Final = Path(__file__).parent.parent
Direction = Literal["request", "response"]
LOWER: Final = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
UPPER: Final = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
OPTIONAL: Final = re.compile(r"(?<!\\)[^\\()\[\]{}|^$]\?")
"""A part of a pattern that a string may lack: a pattern that gains one accepts all strings that it accepted before."""
NOTHING: Final[Mapping[str, Any]] = {}
METHODS: Final = ("get", "put", "post", "delete", "patch")


@dataclass(frozen=True, order=True)
class Breaking:
    """A change that breaks callers: `place` is an operation or a field, and the changelog must contain `name`."""

    place: str
    what: str
    name: str

    def __str__(self) -> str:
        return f"{self.place}: {self.what}"


def breaking(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Breaking]:
    """Return the changes of an OpenAPI document that break callers of the old one."""
    comparison = Comparison(old, new)
    for path, method, operation in operations(old):
        comparison.operation(f"{method.upper()} {path}", operation, new["paths"].get(path, NOTHING).get(method))
    for problem in sorted(problems(old) - problems(new)):
        comparison.found.add(Breaking(problem, "no operation has this problem any more", problem.rpartition("/")[2]))
    return sorted(comparison.found)


def operations(document: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield path, method and declaration of each operation."""
    for path, methods in document["paths"].items():
        for method in METHODS:
            if method in methods:
                yield path, method, methods[method]


def problems(document: Mapping[str, Any]) -> set[str]:
    """Return the types of all problems that a document has."""
    return set(re.findall(r'"(/problems/[a-z-]+)"', json.dumps(document["paths"]) + json.dumps(document["components"])))


@dataclass
class Comparison:
    """The changes that break callers, found by walking two documents in step."""

    old: Mapping[str, Any]
    new: Mapping[str, Any]
    found: set[Breaking] = field(default_factory=set)
    _seen: set[tuple[str, str, str]] = field(default_factory=set)

    def operation(self, name: str, old: Mapping[str, Any], new: Mapping[str, Any] | None) -> None:
        """Compare an operation with what became of it."""
        if new is None:
            self.found.add(Breaking(name, "removed", name.partition(" ")[2]))
            return
        if old.get("operationId") != new.get("operationId"):
            self.found.add(Breaking(name, f"its id is no longer {old.get('operationId')}", str(old.get("operationId"))))
        self._parameters(name, old, new)
        self._body(name, old.get("requestBody"), new.get("requestBody"))
        for status, response in old["responses"].items():
            if not status.startswith("2"):
                continue
            if status not in new["responses"]:
                self.found.add(Breaking(name, f"no response has status {status}", name.partition(" ")[2]))
                continue
            for kind, media in response.get("content", NOTHING).items():
                self._media(name, "response", kind, media, new["responses"][status].get("content", NOTHING))

    def _parameters(self, name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        before, after = (
            {(one["in"], one["name"]): one for one in operation.get("parameters", ())} for operation in (old, new)
        )
        for key, parameter in before.items():
            place = f"{name} {key[0]} parameter {key[1]}"
            if key not in after:
                self.found.add(Breaking(place, "removed", key[1]))
            else:
                self._schema(place, key[1], "request", _sent(parameter["schema"]), _sent(after[key]["schema"]))
        for key, parameter in after.items():
            if parameter.get("required") and not before.get(key, NOTHING).get("required"):
                self.found.add(Breaking(f"{name} {key[0]} parameter {key[1]}", "required", key[1]))

    def _body(self, name: str, old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> None:
        if new is not None and new.get("required") and not (old or NOTHING).get("required"):
            self.found.add(Breaking(name, "a body is required", name.partition(" ")[2]))
        for kind, media in (old or NOTHING).get("content", NOTHING).items():
            self._media(name, "request", kind, media, (new or NOTHING).get("content", NOTHING))

    def _media(
        self, name: str, direction: Direction, kind: str, old: Mapping[str, Any], new: Mapping[str, Mapping[str, Any]]
    ) -> None:
        if kind not in new:
            self.found.add(Breaking(name, f"no {direction} is {kind}", kind))
        elif "schema" in old:
            self._schema(f"{direction} of {name}", "", direction, old["schema"], new[kind].get("schema", NOTHING))

    def _schema(
        self, place: str, name: str, direction: Direction, old: Mapping[str, Any], new: Mapping[str, Any]
    ) -> None:
        """Compare two schemas. Inside a named one, the place is its name, so that it is reported once."""
        if "$ref" in old:
            title = old["$ref"].rpartition("/")[2]
            step = (direction, title, str(new.get("$ref", json.dumps(new, sort_keys=True))))
            if step in self._seen:
                return
            self._seen.add(step)
            place = f"{title} in {direction}s"
        before, after = _resolved(self.old, old), _resolved(self.new, new)
        if "anyOf" in before or "anyOf" in after:
            self._variants(place, name, direction, _variants(self.old, before), _variants(self.new, after))
            return
        for what in _differences(direction, before, after):
            self.found.add(Breaking(place, what, name or place))
        self._properties(place, direction, before, after)
        for key in ("items", "additionalProperties"):
            if isinstance(before.get(key), Mapping) and isinstance(after.get(key), Mapping):
                self._schema(f"{place}[]", name, direction, before[key], after[key])

    def _properties(self, place: str, direction: Direction, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        before, after = old.get("properties", NOTHING), new.get("properties", NOTHING)
        lost, gained = set(old.get("required", ())), set(new.get("required", ()))
        for name, schema in before.items():
            if name not in after:
                self.found.add(Breaking(f"{place}.{name}", "removed", name))
                continue
            if direction == "response" and name in lost - gained:
                self.found.add(Breaking(f"{place}.{name}", "may be missing", name))
            self._schema(f"{place}.{name}", name, direction, schema, after[name])
        if direction == "request":
            for name in gained - lost:
                self.found.add(Breaking(f"{place}.{name}", "required", name))

    def _found(
        self, place: str, name: str, direction: Direction, old: Mapping[str, Any], new: Mapping[str, Any]
    ) -> set[Breaking]:
        """Return the findings of a comparison of two schemas."""
        comparison = Comparison(self.old, self.new, _seen=set(self._seen))
        comparison._schema(place, name, direction, old, new)
        return comparison.found

    def _variants(
        self,
        place: str,
        name: str,
        direction: Direction,
        old: list[Mapping[str, Any]],
        new: list[Mapping[str, Any]],
    ) -> None:
        """Compare alternatives: each is compared with the one of its kind, if there is one, that is most like it."""
        for one in old:
            like = [other for other in new if _kind(self.new, other) == _kind(self.old, one)]
            if like:
                found = [self._found(place, name, direction, one, other) for other in like]
                self.found |= min(found, key=len)
            elif direction == "request" or _kind(self.old, one)[0] == "object":
                self.found.add(Breaking(place, f"no longer {_kind(self.old, one)[-1]}", name or place))
        if direction == "response":
            known = {_kind(self.old, one)[0] for one in old}
            for other in new:
                if _kind(self.new, other)[0] not in known:
                    self.found.add(Breaking(place, f"may be {_kind(self.new, other)[-1]}", name or place))


def _resolved(document: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Follow references, and put the parts of an `allOf` together."""
    while "$ref" in schema:
        found: Any = document
        for part in schema["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        schema = found
    if "oneOf" in schema:
        return {"anyOf": schema["oneOf"]}
    if "allOf" in schema:
        whole: dict[str, Any] = {key: value for key, value in schema.items() if key != "allOf"}
        for one in schema["allOf"]:
            whole |= _resolved(document, one)
        return whole
    return schema


def _sent(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema of a parameter without null, which a request cannot send in its address or its headers."""
    variants = [one for one in schema.get("anyOf", ()) if one.get("type") != "null"]
    return variants[0] if len(variants) == 1 else schema


def _variants(document: Mapping[str, Any], schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the alternatives of a schema, those of alternatives included; a schema without any is the only one."""
    if "anyOf" not in schema:
        return [schema]
    found: list[Mapping[str, Any]] = []
    for one in schema["anyOf"]:
        inner = _resolved(document, one)
        found += _variants(document, inner) if "anyOf" in inner else [one]
    return found


def _kind(document: Mapping[str, Any], schema: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what tells an alternative from others: its JSON type, and the constants that an object has."""
    whole = _resolved(document, schema)
    kind = str(whole.get("type", "any value" if "const" not in whole else type(whole["const"]).__name__))
    properties = {name: _resolved(document, one) for name, one in whole.get("properties", NOTHING).items()}
    marks = tuple(f"{name} {one['const']}" for name, one in sorted(properties.items()) if "const" in one)
    return (kind, *marks[:1])


def _differences(direction: Direction, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """Yield what breaks callers in the keywords of two schemas without alternatives."""
    if old.get("type") != new.get("type") and not _widened(direction, old.get("type"), new.get("type")):
        yield f"{old.get('type', 'any value')} became {new.get('type', 'any value')}"
    if direction == "request":
        yield from _narrower(old, new)
    if old.get("format") != new.get("format") and (direction == "response") == ("format" in old):
        yield f"format {old.get('format', 'of any kind')} became {new.get('format', 'of any kind')}"


def _widened(direction: Direction, old: object, new: object) -> bool:
    """Return whether callers of the old type know the new one: requests may widen, responses may narrow."""
    if direction == "request":
        return new is None or (old, new) == ("integer", "number")
    return old is None or (old, new) == ("number", "integer")


def _narrower(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """Yield each restriction of a new schema of requests that the old one did not have."""
    before, after = _values(old), _values(new)
    if after is not None and (before is None or before - after):
        yield "must be one of other values" if before is None else f"no longer {', '.join(sorted(before - after))}"
    closer: tuple[tuple[tuple[str, ...], Callable[[float, float], bool]], ...] = (
        (LOWER, lambda one, other: float(other) > float(one)),
        (UPPER, lambda one, other: float(other) < float(one)),
    )
    for keys, narrows in closer:
        for key in keys:
            if key in new and (key not in old or narrows(old[key], new[key])):
                yield f"{key} is {new[key]}, and was {old.get(key, 'none')}"
    pattern = new.get("pattern", old.get("pattern"))
    if pattern != old.get("pattern") and OPTIONAL.sub("", pattern) != old.get("pattern"):
        yield f"pattern is {new['pattern']}, and was {old.get('pattern', 'none')}"
    if new.get("additionalProperties") is False and old.get("additionalProperties") is not False:
        yield "refuses unknown fields"


def _values(schema: Mapping[str, Any]) -> set[str] | None:
    if "const" in schema:
        return {str(schema["const"])}
    return {str(one) for one in schema["enum"]} if "enum" in schema else None


def last_release() -> tuple[str, Mapping[str, Any]]:
    """Return version and API document of the newest recorded release. Raises CalledProcessError in a shallow clone."""
    release = tomllib.loads((ROOT / "tests" / "migration" / "releases.toml").read_text(encoding="utf-8"))["release"][-1]
    command = ["git", "show", f"{release['commit']}:openapi/palimpsest.json"]
    text = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout  # noqa: S603 - git
    return release["version"], json.loads(text)


def upgrading(changelog: str, version: str) -> str:
    """Return the parts `### Upgrading` of the sections after a version: of Unreleased, and of one that was just cut."""
    newer = changelog.partition(f"\n## [{version}]")[0]
    return "\n".join(re.findall(r"^### Upgrading\n(.*?)(?=^##|\Z)", newer, re.MULTILINE | re.DOTALL))


def unnamed(changes: list[Breaking], text: str) -> list[Breaking]:
    """Return the changes that a text does not name in backquotes."""
    named = set(re.findall(r"[\w./{}:-]+", " ".join(re.findall(r"`([^`]+)`", text))))
    return [change for change in changes if change.name not in named]


def main(arguments: list[str]) -> int | str:
    """Run the command; return its exit code or its error."""
    if len(arguments) == 2:
        old, new = (json.loads(Path(name).read_text(encoding="utf-8")) for name in arguments)
        sys.stdout.writelines(f"{change}\n" for change in breaking(old, new))
        return 0
    version, old = last_release()
    changes = breaking(old, json.loads((ROOT / "openapi" / "palimpsest.json").read_text(encoding="utf-8")))
    sys.stdout.write(f"{len(changes)} changes since {version} break callers\n")
    sys.stdout.writelines(f"{change}\n" for change in changes)
    missing = unnamed(changes, upgrading((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version))
    names = ", ".join(sorted({f"`{change.name}`" for change in missing}))
    return f"CHANGELOG.md does not name under ### Upgrading: {names}" if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
