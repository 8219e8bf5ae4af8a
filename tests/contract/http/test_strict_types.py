"""Every field and parameter has the type that the OpenAPI document names: values of a similar type are errors."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.contract.http.conftest import Unchanged
from tests.support.openapi import document

DOCUMENT = json.loads(document())
SCHEMAS = DOCUMENT["components"]["schemas"]
REQUIRED_FIELDS: dict[str, dict[str, Any]] = {
    "append_events": {"events": [{"type": "turn.end"}]},
    "append_messages": {"format": "openai", "messages": [{"role": "user", "content": "go"}]},
    "create_erasure": {"metadata": {"user": "ann"}},
    "create_key": {"name": "k", "scopes": ["read"]},
    "fork_session": {"id": "f"},
    "preview_erasure": {"metadata": {"user": "ann"}},
    "put_layer": {"content": "text"},
    "put_webhook": {"url": "http://127.0.0.1:9/", "events": ["compaction.finished"]},
    "rewind_session": {"to": 1},
}
"""The other fields of a body, next to the one with the wrong type."""
LENIENT = {("append_events", "events.0.occurred_at")}
"""Fields that accept values of any type."""


def resolved(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    while "$ref" in schema:
        schema = SCHEMAS[schema["$ref"].rpartition("/")[2]]
    return schema


def alternatives(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    schema = resolved(schema)
    inner = schema.get("anyOf") or schema.get("oneOf") or [schema]
    return [resolved(one) for one in inner]


def similar_values(schema: Mapping[str, Any]) -> list[Any]:
    """Return values that a lenient parser would accept for a schema."""
    kinds = {one.get("type") for one in alternatives(schema)}
    formats = {one.get("format") for one in alternatives(schema)}
    if None in kinds:  # takes anything
        return []
    found: list[Any] = []
    if "boolean" in kinds:
        found += [0, 1, "true", "no", "on", "1"]
    elif kinds & {"integer", "number"}:
        found += ["1", "1.0", True]
    elif "date-time" in formats:
        found += [0.5, 1_700_000_000, "1700000000", True]
    elif "string" in kinds:
        found += [1, 0.5, True]
    if "array" in kinds:
        found += [
            [wrong_value]
            for one in alternatives(schema)
            if one.get("type") == "array"
            for wrong_value in similar_values(one["items"])
        ]
    return found


def fields(schema: Mapping[str, Any], depth: int = 0) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the path of every field of a body with this schema, each with a value of the wrong type."""
    for one in alternatives(schema):
        for name, field in one.get("properties", {}).items():
            for wrong_value in similar_values(field):
                yield (name,), wrong_value
            for inner in alternatives(field):
                items = inner.get("type") == "array"
                for place, wrong_value in fields(inner["items"] if items else inner, depth + 1) if depth < 4 else ():
                    yield (name, "0", *place) if items else (name, *place), wrong_value


def with_value_at(place: tuple[str, ...], value: Any, base: Any = None) -> Any:
    """Return `base` with a value at a path, creating missing objects and lists."""
    if not place:
        return value
    if place[0] == "0":
        return [with_value_at(place[1:], value, base[0] if base else None)]
    return {**(base or {}), place[0]: with_value_at(place[1:], value, (base or {}).get(place[0]))}


CASES = [
    (method.upper(), path, operation)
    for path, found in DOCUMENT["paths"].items()
    for method, operation in found.items()
    if "/healthz" not in path
]


def bodies(operation: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield bodies with one wrong value each, and the path of that value."""
    content = operation.get("requestBody", {}).get("content", {}).get("application/json")
    name = operation["operationId"]
    for place, wrong_value in () if content is None else fields(content["schema"]):
        where = ".".join(place)
        if (name, where) not in LENIENT:
            yield where, with_value_at(place, wrong_value, REQUIRED_FIELDS.get(name, {}))


@pytest.mark.parametrize(("method", "path", "operation"), CASES, ids=lambda one: one if type(one) is str else "")
async def test_a_value_of_a_similar_type_is_an_error(
    unchanged: Unchanged, method: str, path: str, operation: dict[str, Any]
) -> None:
    http, call = unchanged
    seqs = {"seq": "1", "sid": "s", "name": "w", "kind": "sources"}
    place = path
    for parameter in operation.get("parameters", ()):
        if parameter["in"] == "path":
            place = place.replace("{" + parameter["name"] + "}", seqs.get(parameter["name"], call))
    for where, body in bodies(operation):
        answer = await http.request(method, place, json=body)
        assert answer.status_code == 422, (where, body, answer.status_code, answer.text)
    required = {
        parameter["name"]: "2026-01-01T00:00:00Z"
        for parameter in operation.get("parameters", ())
        if parameter["in"] == "query" and parameter["required"]
    }
    for parameter in operation.get("parameters", ()):
        kinds = {one.get("type") for one in alternatives(parameter["schema"])}
        formats = {one.get("format") for one in alternatives(parameter["schema"])}
        wrong = ["1.0", " 1", "1_0", "+1", "١"] if "integer" in kinds else []
        wrong += ["1", "0", "on", "yes", "t", "TRUE"] if "boolean" in kinds else []
        wrong += ["0.5", "1700000000", "-1"] if "date-time" in formats else []
        for value in wrong:
            name, query = parameter["name"], {**required}
            asked = place
            if parameter["in"] == "query":
                query |= {name: value}
            elif parameter["in"] == "path":
                asked = path.replace("{sid}", "s").replace("{" + name + "}", value)
            answer = await http.request(method, asked, params=query)
            assert (answer.status_code, answer.json()["field"]) == (422, name), (value, answer.text)
