"""The OpenAPI document: the committed one is current, and it describes every operation, field and problem."""

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import jsonschema
import pytest

from app import main
from app.core.log.events import INPUT_FIELDS
from app.http import errors
from app.http.problems import schema_name
from app.resources.events.schemas import EventIn
from tests.support.openapi import COMMITTED

document = cache(main.document)


def test_the_committed_document_is_current() -> None:
    assert COMMITTED.read_text() == document(), "run `make openapi`"


def test_every_operation_has_a_stable_id_and_names_its_problems() -> None:
    seen = set()
    for path, operations in json.loads(document())["paths"].items():
        for method, operation in operations.items():
            assert "_v1_" not in operation["operationId"], (path, method)
            assert operation["operationId"] not in seen
            seen.add(operation["operationId"])
            if path.startswith("/v1/"):
                assert {"401", "403", "503"} <= set(operation["responses"]), (path, method)


def test_every_problem_is_somewhere_in_the_document() -> None:
    text = document()
    missing = [p.slug for p in errors.ALL if f"/problems/{p.slug}" not in text]
    assert missing == []


def test_only_problems_that_send_retry_after_ask_clients_to_obey_it() -> None:
    schemas = json.loads(document())["components"]["schemas"]
    for problem in errors.ALL:
        asks = "`Retry-After`" in schemas[schema_name(problem.slug)]["description"]
        assert asks == (problem.status in (429, 503)), problem.slug


def test_every_operation_and_every_parameter_is_described() -> None:
    missing = []
    for path, operations in json.loads(document())["paths"].items():
        for method, operation in operations.items():
            named = [("", operation), *((one["name"], one) for one in operation.get("parameters", []))]
            missing += [f"{method} {path} {name}".strip() for name, one in named if not is_described(one)]
    assert missing == [], "a docstring for an operation, and a description for each of its parameters"


def test_every_schema_and_every_field_is_described() -> None:
    schemas = json.loads(document())["components"]["schemas"]
    missing = [name for name, schema in schemas.items() if not is_described(schema)]
    missing += [path for name, schema in schemas.items() for path, own in fields(schema, name) if not is_described(own)]
    assert missing == [], "a docstring for a model, and `Field(description=…)` for each of its fields"


def is_described(one: dict[str, Any]) -> bool:
    """Return whether something has a description of more than one word."""
    return len(one.get("description", "").split()) > 1


def fields(schema: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield all fields of a schema with their paths, at any depth."""
    if isinstance(schema, list):
        for one in schema:
            yield from fields(one, path)
    elif isinstance(schema, dict):
        for name, own in schema.get("properties", {}).items():
            yield f"{path}.{name}", own
            yield from fields(own, f"{path}.{name}")
        for keyword in ("items", "additionalProperties", "anyOf", "allOf", "oneOf"):
            yield from fields(schema.get(keyword), path)


def test_the_schema_of_an_event_has_the_fields_the_core_takes() -> None:
    assert set(EventIn.model_fields) == INPUT_FIELDS


@pytest.mark.parametrize("name", ["EventsIn", "MessagesIn", "ContextIn", "SessionIn", "ContextOut", "AppendedOut"])
def test_bodies_have_examples(name: str) -> None:
    assert json.loads(document())["components"]["schemas"][name].get("examples"), name


def test_every_example_of_a_schema_is_valid() -> None:
    components = json.loads(document())["components"]
    for schema in components["schemas"].values():  # FastAPI omits null fields from the document's examples
        nullable = {name for name, own in schema.get("properties", {}).items() if {"type": "null"} in variants(own)}
        schema["required"] = [name for name in schema.get("required", ()) if name not in nullable]
    for name, schema in components["schemas"].items():
        for example in schema.get("examples", ()):
            jsonschema.validate(example, {"components": components, "$ref": f"#/components/schemas/{name}"})


def variants(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the types that a field may have."""
    return [{"type": one.get("type")} for one in schema.get("anyOf", [schema])]


def test_every_error_is_a_problem_with_a_schema_for_each_slug() -> None:
    """Client generators create error types only if each problem has a schema under its media type."""
    whole = json.loads(document())
    schemas = whole["components"]["schemas"]
    for path, operations in whole["paths"].items():
        for method, operation in operations.items():
            for status, response in operation["responses"].items():
                if int(status) < 400:
                    continue
                place = (path, method, status)
                assert list(response["content"]) == ["application/problem+json"], place
                content = response["content"]["application/problem+json"]
                named = content["schema"].get("oneOf", [content["schema"]])
                found = [schemas[one["$ref"].rpartition("/")[2]] for one in named]
                kinds = [schema["properties"]["type"]["const"] for schema in found]
                assert kinds == [f"/problems/{slug}" for slug in content["examples"]], place
                assert {schema["properties"]["status"]["const"] for schema in found} == {int(status)}, place
                for schema, example in zip(found, content["examples"].values(), strict=True):
                    jsonschema.validate(example["value"], schema)
                if len(named) > 1:
                    mapping = content["schema"]["discriminator"]["mapping"]
                    assert mapping == {kind: one["$ref"] for kind, one in zip(kinds, named, strict=True)}, place


def test_the_document_describes_servers_security_and_tags() -> None:
    whole = json.loads(document())
    assert [server["url"] for server in whole["servers"]] == ["/"]
    assert whole["components"]["securitySchemes"]["ApiKey"] | {"description": ""} == {
        "type": "http",
        "scheme": "bearer",
        "description": "",
    }
    used = set()
    for path, operations in whole["paths"].items():
        for method, operation in operations.items():
            used |= set(operation["tags"])
            assert len(operation["security"]) == path.startswith("/v1/"), (path, method)
            for response in operation["responses"].values():
                assert response["description"] not in ("", "Successful Response"), (path, method)
    assert used == {tag["name"] for tag in whole["tags"]}
    assert all(len(tag["description"].split()) > 3 for tag in whole["tags"])
    audit = [{"ApiKey": ["audit"]}]
    scope_of = {op["operationId"]: op["security"] for ops in whole["paths"].values() for op in ops.values()}
    assert scope_of["append_events"] == [{"ApiKey": ["ingest"]}]
    assert scope_of["get_context"] == [{"ApiKey": ["read"]}]
    assert scope_of.get("audit_calls", audit) == audit
    assert scope_of["put_policy"] == [{"ApiKey": ["admin"]}]
    assert scope_of["healthz"] == []
