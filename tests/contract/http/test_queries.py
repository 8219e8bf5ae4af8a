"""Query parameters: unknown ones are errors on every operation, and every error names its parameter."""

import json
from typing import Any

import httpx
import pytest

from tests.support.openapi import document

CALL = "019373a1-0000-7000-8000-000000000000"
PLACES = {"sid": "s", "seq": "1", "call_id": CALL, "other_id": CALL, "name": "n", "kind": "sources"}
OPERATIONS = [
    (method.upper(), path, operation)
    for path, found in json.loads(document())["paths"].items()
    for method, operation in found.items()
]


def place(path: str) -> str:
    for name in PLACES:
        path = path.replace("{" + name + "}", PLACES[name])
    return path.replace("{", "").replace("}", "")


@pytest.mark.parametrize(("method", "path", "operation"), OPERATIONS, ids=lambda one: one if type(one) is str else "")
async def test_an_unknown_parameter_is_an_error_everywhere(
    refusing: httpx.AsyncClient, method: str, path: str, operation: dict[str, Any]
) -> None:
    answer = await refusing.request(method, place(path), params={"max_token": "9000"})
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/invalid-request"), answer.text
    assert answer.json()["field"] == "max_token"
    assert "'max_token'" in answer.json()["detail"]
    assert "422" in operation["responses"]


@pytest.mark.parametrize(
    ("path", "wrong", "named"),
    [
        ("/v1/sessions/s/context", {"max_tokens": "many"}, "max_tokens"),
        ("/v1/sessions/s/context", {"view": "a b"}, "view"),
        ("/v1/sessions/s/context", {"format": "acme"}, "format"),
        ("/v1/sessions/s/context", {"at": "-1", "model": "gpt-4o"}, "at"),
        ("/v1/sessions/s/events", {"after": "x"}, "after"),
        ("/v1/sessions/s/events", {"limit": "0"}, "limit"),
        ("/v1/sessions", {"cursor": "???"}, "cursor"),
        pytest.param("/v1/audit/calls", {"since": "yesterday"}, "since", marks=pytest.mark.wing("audit")),
        ("/v1/sessions/s/summaries", {"live": "perhaps"}, "live"),
        pytest.param("/v1/tools/recall", {"format": "acme"}, "format", marks=pytest.mark.wing("recall")),
        pytest.param("/v1/sessions/s/stream", {"types": "gossip"}, "types", marks=pytest.mark.wing("stream")),
    ],
)
async def test_an_error_names_its_parameter(
    client: httpx.AsyncClient, path: str, wrong: dict[str, str], named: str
) -> None:
    await client.post("/v1/sessions/s/events", json={"events": [{"type": "user.message", "content": "Hello"}]})
    answer = await client.get(path, params=wrong)
    assert (answer.status_code, answer.json()["field"]) == (422, named), answer.text
    assert answer.json()["detail"].startswith((f"{named}: ", f"{named} must", "the cursor")), answer.text


async def test_a_misspelt_parameters_error_lists_the_valid_ones(client: httpx.AsyncClient) -> None:
    answer = await client.get("/v1/sessions/s/events", params={"sicne": "1"})
    assert "takes after, author, cursor, limit, type" in answer.json()["detail"]
    nothing = await client.post("/v1/sessions/s/events", params={"view": "main"}, json={"events": []})
    assert "takes none" in nothing.json()["detail"]
