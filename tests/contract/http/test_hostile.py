"""Values that no honest client sends, in every field and parameter: they never cause a server error."""

import base64
import json
import re
from typing import Any

import httpx
import pytest

from tests.contract.http.conftest import Unchanged, session
from tests.support.openapi import document

DOCUMENT = json.loads(document())
JSON = {"Content-Type": "application/json"}
CALL = "019373a1-0000-7000-8000-000000000000"
WHEN = "2026-01-01T00:00:00"
LISTS = [
    "/v1/sessions",
    "/v1/sessions/s/events",
    "/v1/sessions/s/epochs",
    "/v1/sessions/s/turns",
    "/v1/sessions/s/summaries",
    "/v1/sessions/s/compactions",
    pytest.param("/v1/sessions/s/calls", marks=pytest.mark.wing("audit")),
    pytest.param("/v1/sessions/s/events/1/history", marks=pytest.mark.wing("compare")),
    pytest.param("/v1/sessions/s/ledger", marks=pytest.mark.wing("ledger")),
    pytest.param("/v1/audit/calls", marks=pytest.mark.wing("audit")),
    "/v1/calibrations",
    "/v1/policies",
    pytest.param("/v1/webhooks", marks=pytest.mark.wing("webhooks")),
    pytest.param("/v1/webhooks/w/deliveries", marks=pytest.mark.wing("webhooks")),
]
CURSORS: list[Any] = [
    True, False, 0, -1, 1.5, 2**31, 2**63, 10**40, "", "x", "\x00", "\ud800", "'; --", [], {}, [1, 2], [None, None],
    [WHEN, CALL],
    [WHEN + "Z", 5], [WHEN + "Z", "x"], ["0001-01-01T00:00:00+14:00", CALL], ["9999-12-31T23:59:59-14:00", CALL],
    ["0001-01-01T00:00:00Z", CALL], ["a\x00", "b"], ["a", "\ud800"], [5, CALL], CALL[:-1], {"a": 1}, [[[]]],
]  # fmt: skip
RAW = ["%00", "a", "====", "é", "%ff%fe", "W1tb" * 12_500, "TmFO", "MWU5OTk", "/w", "9" * 5000]


def cursor(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def assert_refused(answer: httpx.Response, *also: int) -> None:
    assert answer.status_code in (422, *also), (answer.request.method, answer.request.url, answer.text)
    assert also or answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("path", LISTS)
async def test_odd_cursors(unchanged: Unchanged, path: str) -> None:
    """Some are no cursors, others could be a position in one of the lists."""
    for value in CURSORS:
        answer = await unchanged.http.get(path, params={"cursor": cursor(value)})
        assert answer.status_code in (200, 422), (value, answer.text)
        if isinstance(value, (bool, float, dict)):
            assert_refused(answer)
    for raw in RAW:
        answer = await unchanged.http.get(f"{path}?cursor={raw}")
        assert answer.status_code == 422, (raw[:20], answer.text)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/sessions/s/events?after=9223372036854775808"),
        ("GET", "/v1/sessions/s/events?after=" + "9" * 400),
        ("GET", "/v1/sessions/s/events?after=-1"),
        pytest.param("GET", "/v1/sessions/s/stream?after=9223372036854775808", marks=pytest.mark.wing("stream")),
        ("GET", "/v1/sessions/s/context?at=9223372036854775808"),
        ("GET", "/v1/sessions/s/context?model=a%00b"),
        pytest.param("GET", "/v1/audit/calls?model=a%00b", marks=pytest.mark.wing("audit")),
        pytest.param("GET", "/v1/audit/calls?since=0001-01-01T00:00:00%2B14:00", marks=pytest.mark.wing("audit")),
        pytest.param("GET", "/v1/audit/calls?until=9999-12-31T23:59:59-14:00", marks=pytest.mark.wing("audit")),
        pytest.param("GET", "/v1/audit/calls?since=1e400", marks=pytest.mark.wing("audit")),
        *(
            pytest.param("GET", f"/v1/audit/ledger?since={since}", marks=pytest.mark.wing("ledger"))
            for since in ("9999-12-31T23:59:59-14:00", "2026-01-01T00:00:00Z&model=a%00")
        ),
        ("GET", "/v1/calibrations?cursor=%00"),
        ("DELETE", "/v1/calibrations?model=a%00b"),
        ("DELETE", "/v1/calibrations?estimator=%00"),
        ("GET", "/v1/sessions?parent=a%00"),
        ("GET", "/v1/sessions/%00"),
        ("GET", "/v1/policies/%00"),
        pytest.param("PUT", "/v1/webhooks/%00", marks=pytest.mark.wing("webhooks")),
    ],
)
async def test_odd_parameters(unchanged: Unchanged, method: str, path: str) -> None:
    assert_refused(await unchanged.http.request(method, path, content=b"{}" if method == "PUT" else None, headers=JSON))


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("/v1/audit/calls?since=0001-01-01T00:00:00Z", marks=pytest.mark.wing("audit")),
        pytest.param("/v1/audit/calls?until=9999-12-31T23:59:59Z", marks=pytest.mark.wing("audit")),
        *(
            pytest.param(f"/v1/audit/ledger?since={since}", marks=pytest.mark.wing("ledger"))
            for since in (
                "0001-01-01T00:00:00Z",
                "9999-12-31T23:59:59Z",
                "9999-12-01T00:00:00Z&until=9999-12-31T23:59:59Z",
                "0001-01-01T00:00:00Z&until=0001-01-02T00:00:00Z",
            )
        ),
    ],
)
async def test_times_at_the_ends_of_the_calendar(unchanged: Unchanged, path: str) -> None:
    answer = await unchanged.http.get(path)
    assert answer.status_code in (200, 422), answer.text


async def test_there_is_no_event_0(client: httpx.AsyncClient) -> None:
    await session(client)
    for method in ("GET", "DELETE"):
        for seq in (0, -1, 2**63, 10**30):
            answer = await client.request(method, f"/v1/sessions/s/events/{seq}")
            assert answer.status_code in (404, 422), answer.text


NUL, LONE = "a\x00b", "a\ud800b"
BODIES: list[Any] = [
    case
    for bad in (NUL, LONE)
    for case in [
        ("PUT", "/v1/sessions/t", {"model": bad}),
        ("PUT", "/v1/sessions/t", {"policy": bad}),
        ("PUT", "/v1/sessions/t", {"metadata": {"a": bad}}),
        ("PUT", "/v1/sessions/t", {"metadata": {bad: [1]}}),
        ("POST", "/v1/sessions/s/fork", {"id": "f", "metadata": {"a": [bad]}}),
        ("POST", "/v1/sessions/s/context", {"model": bad}),
        ("POST", "/v1/sessions/s/context", {"policy": bad}),
        pytest.param("POST", "/v1/sessions/s/context:preview", {"model": bad}, marks=pytest.mark.wing("compare")),
        pytest.param("POST", "/v1/sessions/s/recall", {"query": bad}, marks=pytest.mark.wing("recall")),
        pytest.param("POST", "/v1/sessions/s/recall", {"paths": [bad]}, marks=pytest.mark.wing("recall")),
        ("POST", "/v1/sessions/s/compactions", {"focus": bad}),
        ("POST", "/v1/sessions/s/turns/end", {"turn_id": bad}),
        ("PATCH", "/v1/sessions/s/visibility", {"hide": [{"path": bad}]}),
        ("PATCH", "/v1/sessions/s/visibility", {"hide": [{"seq": 1, "replacement": bad}]}),
        pytest.param(
            "PUT",
            "/v1/webhooks/v",
            {"url": "http://a/" + bad, "events": ["compaction.finished"]},
            marks=pytest.mark.wing("webhooks"),
        ),
        ("PUT", "/v1/sessions/t", {bad: 1}),
        ("POST", "/v1/sessions/t/events", {bad: 1}),
    ]
]


@pytest.mark.parametrize(("method", "path", "body"), BODIES)
async def test_nul_and_surrogates_in_bodies_are_refused(
    unchanged: Unchanged, method: str, path: str, body: Any
) -> None:
    answer = await unchanged.http.request(method, path, content=json.dumps(body), headers=JSON)
    looked_up = {"/recall": 200}.get(path[path.rfind("/") :]) or (404 if "policy" in body else None)
    assert_refused(answer, *filter(None, [looked_up]))  # a lookup by such a text finds nothing


@pytest.mark.wing("audit")
@pytest.mark.parametrize("bad", [NUL, LONE])
async def test_nul_and_surrogates_in_a_providers_error_are_accepted(client: httpx.AsyncClient, bad: str) -> None:
    call = await session(client)
    error = {"error": {"status": 400, "message": f"{bad} prompt is too long", "code": bad}}
    path = f"/v1/sessions/s/calls/{call}/outcome"
    first = await client.post(path, content=json.dumps(error), headers=JSON)
    assert (first.status_code, first.json()["overflow"]) == (200, True), first.text
    assert (await client.post(path, content=json.dumps(error), headers=JSON)).json() == first.json()
    manifest = await client.get(f"/v1/sessions/s/calls/{call}")
    assert "prompt is too long" in manifest.json()["outcome"]["error"]["message"]


@pytest.mark.wing("audit")
@pytest.mark.parametrize(
    "text", [b'[{"name": "a", "x": NaN}]', b'[{"name": "a", "x": 1e999}]', rb'[{"name": "\ud800"}]']
)
@pytest.mark.parametrize("as_text", [True, False])
async def test_tools_that_cannot_be_serialized(client: httpx.AsyncClient, text: bytes, as_text: bool) -> None:
    """Such tools are refused when appended, or shown: the session stays usable."""
    content = json.dumps(text.decode()).encode() if as_text else text
    body = b'{"events":[{"type":"tools","content":' + content + b'},{"type":"user.message","content":"hello"}]}'
    answer = await client.post("/v1/sessions/s/events", content=body, headers=JSON)
    assert answer.status_code in (201, 422), answer.text
    if answer.status_code == 422:
        await session(client)
    for format in ("openai", "openai-responses", "anthropic", "gemini", "blocks"):
        made = await client.get("/v1/sessions/s/context", params={"format": format, "max_tokens": 8000})
        assert made.status_code == 200, made.text
        again = await client.get(f"/v1/sessions/s/calls/{made.json()['call_id']}/context")
        assert again.json()["sha256"] == made.json()["sha256"]


@pytest.mark.parametrize("depth", [65, 900, 100_000])
async def test_deeply_nested_tools_are_refused(client: httpx.AsyncClient, depth: int) -> None:
    text = '[{"a":' + "[" * depth + "]" * depth + "}]"
    assert_refused(await client.post("/v1/sessions/s/events", json={"events": [{"type": "tools", "content": text}]}))


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"1e999", b"-1e999"])
async def test_numbers_that_json_does_not_have_are_refused(client: httpx.AsyncClient, number: bytes) -> None:
    await session(client)
    for method, path, body in (
        ("PUT", "/v1/sessions/t", b'{"metadata":{"a":%s}}'),
        ("PUT", "/v1/sessions/t", b'{"outside_tokens":%s}'),
        ("POST", "/v1/sessions/s/context", b'{"max_tokens":%s}'),
        ("POST", "/v1/sessions/s/context", b'{"policy":{"low_water":%s}}'),
        ("PUT", "/v1/policies/p", b'{"low_water":%s}'),
        ("POST", "/v1/sessions/s/fork", b'{"id":"f","metadata":{"a":%s}}'),
        ("POST", "/v1/sessions/s/events", b'{"events":[{"type":"user.message","content":"x","metadata":{"a":%s}}]}'),
        ("POST", "/v1/sessions/s/events", b'{"events":[],"expected_head":%s}'),
    ):
        assert_refused(await client.request(method, path, content=body % number, headers=JSON))


@pytest.mark.wing("recall")
@pytest.mark.parametrize("truth", [True, False])
async def test_booleans_are_refused_as_numbers(client: httpx.AsyncClient, truth: bool) -> None:
    call = await session(client)
    for method, path, body in (
        ("PUT", "/v1/sessions/t", {"outside_tokens": truth}),
        ("POST", "/v1/sessions/s/context", {"max_tokens": truth}),
        ("POST", "/v1/sessions/s/context", {"at": truth}),
        ("POST", "/v1/sessions/s/context", {"wait_ms": truth}),
        ("POST", "/v1/sessions/s/context", {"outside_tokens": truth}),
        ("POST", "/v1/sessions/s/context", {"injections": [{"name": "a", "content": "b", "max_tokens": truth}]}),
        ("POST", "/v1/sessions/s/fork", {"id": "f", "at": truth}),
        ("POST", "/v1/sessions/s/recall", {"seqs": [truth]}),
        ("POST", "/v1/sessions/s/recall", {"query": "a", "limit": truth}),
        ("POST", "/v1/sessions/s/recall", {"seqs": [1], "offset": truth}),
        ("POST", "/v1/sessions/s/compactions", {"wait_ms": truth}),
        ("POST", f"/v1/sessions/s/calls/{call}/outcome", {"latency_ms": truth}),
        ("POST", f"/v1/sessions/s/calls/{call}/outcome", {"usage": {"input_tokens": truth}}),
        ("POST", f"/v1/sessions/s/calls/{call}/outcome", {"error": {"status": truth}}),
        ("PATCH", "/v1/sessions/s/visibility", {"hide": [truth]}),
        ("POST", "/v1/sessions/s/events", {"events": [{"type": "turn.end"}], "expected_head": truth}),
    ):
        assert_refused(await client.request(method, path, json=body))
    for path in ("/v1/sessions/s/events", "/v1/sessions/s/epochs", "/v1/sessions/s/turns"):
        assert_refused(await client.get(path, params={"cursor": cursor(truth)}))


async def test_impossible_times_are_refused(client: httpx.AsyncClient) -> None:
    await session(client)
    for now in (
        "0001-01-01T00:00:00+14:00",
        "9999-12-31T23:59:59-14:00",
        "0001-01-01T00:00:00Z",
        1e300,
        "9999-12-31T23:59:59Z",
    ):
        assert_refused(await client.post("/v1/sessions/s/context", json={"now": now, "max_tokens": 8000}))


class TestMethods:
    """Methods that a resource does not have."""

    async def test_405_lists_the_allowed_methods(self, client: httpx.AsyncClient) -> None:
        for path, allowed in (
            ("/v1/sessions/s", "DELETE, GET, PUT"),
            ("/v1/sessions/s/context", "GET, POST"),
            ("/v1/sessions/s/events/1", "DELETE, GET"),
            ("/healthz", "GET, HEAD"),
            (f"/v1/sessions/s/compactions/{CALL}", "GET"),
        ):
            answer = await client.request("OPTIONS", path)
            assert (answer.status_code, answer.headers.get("allow")) == (405, allowed)
            assert answer.json()["type"] == "/problems/method-not-allowed"

    @pytest.mark.parametrize("path", [path for path in DOCUMENT["paths"] if ":" in path])
    async def test_verbs_have_no_other_methods(self, client: httpx.AsyncClient, path: str) -> None:
        allowed = ", ".join(sorted(method.upper() for method in DOCUMENT["paths"][path]))
        place = re.sub(r"\{\w+\}", CALL, path)
        for method in ("DELETE", "GET", "PATCH", "POST", "PUT"):
            if method not in allowed:
                answer = await client.request(method, place)
                assert (answer.status_code, answer.headers.get("allow")) == (405, allowed), (method, place)

    @pytest.mark.parametrize("path", ["/healthz", "/readyz"])
    async def test_a_monitor_may_ask_for_the_head_alone(self, client: httpx.AsyncClient, path: str) -> None:
        answer = await client.head(path)
        assert (answer.status_code, answer.content) == (200, b"")

    async def test_no_redirect_uses_the_callers_host(self, client: httpx.AsyncClient) -> None:
        for path in ("/v1/sessions/", "/v1/sessions/s/events/", "/healthz/", "/mcp/"):
            answer = await client.get(path, headers={"Host": "localhost:1"})
            assert (answer.status_code, answer.headers.get("location")) == (404, None)
