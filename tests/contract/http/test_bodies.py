"""Request bodies: parsed alike on all routes, whatever their declared type, and optional where no field is required."""

import json
from typing import Any

import httpx
import pytest

from tests.contract.http.test_request_limits import BODY_OPERATIONS

EVENTS = {"events": [{"type": "user.message", "content": "Hello"}]}
OPTIONAL = [
    ("PUT", "/v1/sessions/s"),
    ("POST", "/v1/sessions/s/context"),
    pytest.param("POST", "/v1/sessions/s/context:preview", marks=pytest.mark.wing("compare")),
    ("POST", "/v1/sessions/s/turns/end"),
    ("POST", "/v1/sessions/s/compactions"),
]
TYPES = [{}, {"Content-Type": "application/x-www-form-urlencoded"}, {"Content-Type": "text/plain"}]


@pytest.mark.parametrize("headers", TYPES, ids=["none", "a form, as curl says", "text"])
async def test_a_body_is_json_whatever_its_declared_type(client: httpx.AsyncClient, headers: dict[str, str]) -> None:
    """The README's command for a compaction is one of these cases."""
    cases: list[tuple[str, str, Any, int]] = [
        ("PUT", "/v1/sessions/s", {"model": "gpt-4o"}, 201),
        ("POST", "/v1/sessions/s/events", EVENTS, 201),
        ("POST", "/v1/sessions/s/context", {"max_tokens": 9000}, 200),
        ("POST", "/v1/sessions/s/compactions", {"wait_ms": 0}, 202),
        ("POST", "/v1/sessions/s/turns/end", {}, 201),
        ("POST", "/v1/sessions/s/fork", {"id": "f"}, 201),
    ]
    for method, path, body, status in cases:
        answer = await client.request(method, path, content=json.dumps(body), headers=headers)
        assert answer.status_code == status, (path, answer.text)
    assert (await client.get("/v1/sessions/s")).json()["model"] == "gpt-4o"


@pytest.mark.parametrize("headers", TYPES, ids=["none", "form", "text"])
@pytest.mark.parametrize(("method", "path"), BODY_OPERATIONS)
async def test_invalid_json_is_the_same_problem_on_every_route(
    refusing: httpx.AsyncClient, method: str, path: str, headers: dict[str, str]
) -> None:
    answer = await refusing.request(method, path, content=b"a=b", headers=headers)
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/invalid-json"), answer.text


@pytest.mark.parametrize(("method", "path"), OPTIONAL)
async def test_a_body_of_optional_fields_may_be_left_out(client: httpx.AsyncClient, method: str, path: str) -> None:
    await client.post("/v1/sessions/s/events", json=EVENTS)
    answer = await client.request(method, path)
    assert answer.status_code < 300, answer.text


async def test_ending_a_turn_without_a_body_equals_an_empty_body(client: httpx.AsyncClient) -> None:
    await client.post("/v1/sessions/s/events", json=EVENTS)
    key = {"Idempotency-Key": "k"}
    first = await client.post("/v1/sessions/s/turns/end", headers=key)
    again = await client.post("/v1/sessions/s/turns/end", json={}, headers=key)
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json()["events"] == first.json()["events"]
