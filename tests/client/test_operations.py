"""The client agrees with the API's document in operations, parameters, types and errors, and runs on Python 3.10."""

import ast
import importlib.util
import inspect
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import palimpsest
import pytest
from palimpsest import AsyncPalimpsest, AsyncSession, Palimpsest, Session, errors
from palimpsest._method import listing, operation, session_listing, session_operation
from palimpsest._request import Listing, Request

from app.http import errors as served

ROOT = Path(__file__).parent.parent.parent
DOCUMENT = json.loads((ROOT / "openapi" / "palimpsest.json").read_text())
PACKAGE = Path(palimpsest.__file__).parent
SURFACE = {"fork_session": "fork", "rewind_session": "rewind", "stream_session": "stream"}
"""Operations whose method does more: it returns a session, yields events, or drops the calls that await results."""
ONLY_HEADERS = {"Idempotency-Key": "idempotency_key", "Last-Event-ID": "last_id", "Cache-Control": "with_options"}
"""Headers and the parameters that set them."""
REFUSED = {"preview_context": {"append", "outcome"}}
"""Fields of a shared schema that an operation refuses, and has no parameters for."""
GIVEN: dict[str, Any] = {
    "sid": "a",
    "name": "n",
    "kind": "sources",
    "policy": {},
    "seq": 7,
    "scopes": [],
    "events": [],
    "messages": [],
}


def documented() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in DOCUMENT["paths"].items():
        for method, described in methods.items():
            yield method.upper(), path, described


def operations_of(kind: type[Any]) -> dict[str, Any]:
    """Return the operations of a class: their functions by the names of their methods."""
    return {name: one.build for name, one in inspect.getmembers_static(kind) if isinstance(one, (operation, listing))}


OPERATIONS = {described["operationId"]: (method, path, described) for method, path, described in documented()}


@pytest.mark.wing("all")
@pytest.mark.parametrize("twins", [(Palimpsest, Session), (AsyncPalimpsest, AsyncSession)])
def test_every_operation_has_exactly_one_method(twins: tuple[type[Any], type[Any]]) -> None:
    names = [name for kind in twins for name in operations_of(kind)]
    assert all(operations_of(kind)[name].__name__ == name for kind in twins for name in operations_of(kind))
    assert len(names) == len(set(names))
    assert {*names, *SURFACE} == set(OPERATIONS)
    for kind in twins:
        for name, one in inspect.getmembers_static(kind):
            if isinstance(one, (operation, listing)):
                on_session = isinstance(one, (session_operation, session_listing))
                assert on_session == ("{sid}" in OPERATIONS[name][1]), name
    assert all(callable(getattr(twins[1], name)) for name in SURFACE.values())


def function(name: str) -> Any:
    from palimpsest.operations import sessions

    found = operations_of(Palimpsest) | operations_of(Session)
    return found[name] if name in found else getattr(sessions, name)


def built_request(name: str) -> Request[Any]:
    """Return an operation's request with required arguments only."""
    parameters = inspect.signature(function(name)).parameters.values()
    in_path = [GIVEN.get(one, "x") for one in re.findall(r"\{(\w+)\}", OPERATIONS[name][1])]
    extra = [{}] if name == "put_policy" else []
    needed = {
        one.name: GIVEN.get(one.name, "x")
        for one in parameters
        if one.kind is one.KEYWORD_ONLY and one.default is one.empty
    }
    asked: Request[Any] = function(name)(*in_path, *extra, **needed)
    return asked


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_an_operation_asks_what_the_document_says(name: str) -> None:
    method, path, described = OPERATIONS[name]
    parameters = inspect.signature(function(name)).parameters
    asked = built_request(name)
    said = re.sub(r"\{(\w+)\}", lambda found: str(GIVEN.get(found[1], "x")), path)
    assert (asked.method, asked.path) == (method, said)

    query = {one["name"] for one in described.get("parameters", ()) if one["in"] == "query"}
    body: set[str] = set()
    for content in described.get("requestBody", {}).get("content", {}).values():
        schema = DOCUMENT["components"]["schemas"][content["schema"]["$ref"].rpartition("/")[2]]
        body |= set(schema["properties"]) if name != "put_policy" else set()
    accepted = query | body - REFUSED.get(name, set())
    assert accepted <= set(parameters) | ({"last_id"} if name == "stream_session" else set())
    assert query == set(asked.query or {})
    if name != "put_policy":
        assert body == set(asked.body or {})
    headers = {one["name"] for one in described.get("parameters", ()) if one["in"] == "header"}
    assert headers <= set(ONLY_HEADERS)


@pytest.mark.parametrize("name", sorted(set(OPERATIONS) - {"stream_session", "recall_tool", "compact_tool"}))
def test_an_operation_gives_what_the_document_says(name: str) -> None:
    described, asked = OPERATIONS[name][2], built_request(name)
    answers = [one for status, one in described["responses"].items() if status.startswith("2")]
    schemas = [content["schema"] for one in answers for content in one.get("content", {}).values()]
    names = {schema.get("$ref", "").rpartition("/")[2] or schema["type"] for schema in schemas}
    if isinstance(asked, Listing):
        (page,) = names
        items = DOCUMENT["components"]["schemas"][page]["properties"]["items"]["items"]
        names = {items["$ref"].rpartition("/")[2]}
    of_json = {dict: "object", str: "string"}
    assert names == (set() if asked.answer is None else {of_json.get(asked.answer, asked.answer.__name__)})


def test_only_path_parameters_are_positional() -> None:
    for name in OPERATIONS:
        for one in inspect.signature(function(name)).parameters.values():
            by_place = one.kind is one.POSITIONAL_OR_KEYWORD
            assert by_place == (one.default is one.empty and one.name not in needed_by_name(name)), (name, one)


def needed_by_name(name: str) -> set[str]:
    parameters = inspect.signature(function(name)).parameters.values()
    return {one.name for one in parameters if one.kind is one.KEYWORD_ONLY}


def types_writer() -> ModuleType:
    """Return the program that writes the client's types."""
    spec = importlib.util.spec_from_file_location("client_types", ROOT / ".ci" / "client_types.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.wing("all")
def test_the_types_are_those_of_the_document() -> None:
    written = {path.stem: path.read_text() for path in (PACKAGE / "types").glob("*.py")}
    assert types_writer().files() == written, "run `make openapi`"


def test_a_type_that_belongs_to_no_resource_and_no_wing_is_refused() -> None:
    answer = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/StrayOut"}}}}
    paths = {"/v1/strays": {"get": {"responses": {"200": answer}}}}
    schemas = {name: {"properties": {}} for name in ("StrayOut", "EpochChange", "CompactionChange")}
    with pytest.raises(SystemExit, match="StrayOut"):
        types_writer().Writer({"components": {"schemas": schemas}, "paths": paths}).files()


def test_every_problem_has_its_error() -> None:
    for problem in served.ALL:
        kind = errors.BY_SLUG.get(problem.slug) or errors.BY_STATUS.get(problem.status)
        by_class = kind is not None or problem.status >= 500 or problem.slug in ("method-not-allowed", "head-too-large")
        assert by_class, problem
    for slug, kind in errors.BY_SLUG.items():
        (problem,) = {one for one in served.ALL if one.slug == slug}
        nearest = next(one for one in kind.__mro__ if one in errors.BY_STATUS.values() or one is errors.ServerError)
        assert nearest.status_of in (problem.status, None), slug


@pytest.mark.wing("audit")
@pytest.mark.wing("recall")
def test_python_3_10_reads_it() -> None:
    for path in PACKAGE.rglob("*.py"):
        ast.parse(path.read_text(), feature_version=(3, 10))


def test_it_imports_no_providers_sdk() -> None:
    """Only adapters import an SDK; each is an extra of its framework's name, and no other module imports it."""
    project = tomllib.loads((ROOT / "clients" / "python" / "pyproject.toml").read_text())["project"]
    adapters = {name.replace("-", "_") for name in project["optional-dependencies"]}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not set(names) & {f"palimpsest.{name}" for name in adapters}, path
            if path.stem not in adapters:
                assert not {name.partition(".")[0] for name in names} & {"openai", "anthropic", "pydantic", "app"}, path
