"""Every problem that a test sees is held against the schema of its slug in the OpenAPI document."""

import json
from functools import cache
from typing import Any

import httpx
import jsonschema

from tests.support.openapi import document


async def judge(answer: httpx.Response) -> None:
    """Assert that an answer, if it is a problem, is one that the document describes."""
    if answer.headers.get("content-type") == "application/problem+json":
        await answer.aread()
        body = answer.json()
        _validator(body["type"]).validate(body)
        assert body["status"] == answer.status_code


@cache
def _validator(kind: str) -> Any:
    slug = kind.removeprefix("/problems/")
    name = "".join(part.capitalize() for part in slug.split("-")) + "Problem"
    return jsonschema.Draft202012Validator(json.loads(document())["components"]["schemas"][name])
