"""A check of every problem response against the schema of its slug in the OpenAPI document."""

import json
from functools import cache
from typing import Any

import httpx
import jsonschema

from tests.support.openapi import document


async def check_problem(answer: httpx.Response) -> None:
    """Assert that a 204 has no media type and that a problem matches the schema of its type."""
    assert answer.status_code != 204 or "content-type" not in answer.headers
    if answer.headers.get("content-type") == "application/problem+json":
        await answer.aread()
        body = answer.json()
        _validator(body["type"]).validate(body)
        assert body["status"] == answer.status_code


@cache
def _validator(kind: str) -> Any:
    slug = kind.removeprefix("/problems/")
    name = "".join(part.capitalize() for part in slug.split("-")) + "Problem"
    found = json.loads(document())
    return jsonschema.Draft202012Validator({**found, "$ref": f"#/components/schemas/{name}"})
