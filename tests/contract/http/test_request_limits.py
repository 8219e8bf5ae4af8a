"""Authentication before the body is read, and limits on the size and duration of everything a client sends."""

import asyncio
import json
import time
from typing import Any
from uuid import UUID

import httpx
import pytest

from app.http.errors import BodyTooLarge, InvalidJson
from app.http.requests import JsonLimits, parse
from app.runtime.settings import Settings
from app.store.engine import Database
from app.tenants import Tenants
from tests.conftest import serving
from tests.support.openapi import document
from tests.support.wire import connected

KEY = "a-key-for-the-door-tests"
BODY_OPERATIONS = [
    ("PUT", "/v1/sessions/s"),
    ("POST", "/v1/sessions/s/events"),
    ("POST", "/v1/sessions/s/messages"),
    ("POST", "/v1/sessions/s/context"),
    pytest.param("POST", "/v1/sessions/s/context:preview", marks=pytest.mark.wing("compare")),
    ("POST", "/v1/sessions/s/fork"),
    ("POST", "/v1/sessions/s/rewind"),
    pytest.param("POST", "/v1/sessions/s/recall", marks=pytest.mark.wing("recall")),
    ("POST", "/v1/sessions/s/turns/end"),
    ("POST", "/v1/sessions/s/compactions"),
    ("POST", "/v1/sessions/s/calls/019373a1-0000-7000-8000-000000000000/outcome"),
    pytest.param("POST", f"/v1/sessions/s/calls/{UUID(int=1)}/warmings", marks=pytest.mark.wing("warmings")),
    pytest.param("POST", "/v1/sessions/s/context:warm", marks=pytest.mark.wing("warmings")),
    ("PUT", "/v1/sessions/s/layers/sources"),
    ("PATCH", "/v1/sessions/s/visibility"),
    ("PUT", "/v1/policies/p"),
    pytest.param("PUT", "/v1/webhooks/w", marks=pytest.mark.wing("webhooks")),
    ("POST", "/v1/keys"),
    pytest.param("PUT", "/v1/retention", marks=pytest.mark.wing("retention")),
    pytest.param("POST", "/v1/erasures", marks=pytest.mark.wing("retention")),
    pytest.param("POST", "/v1/erasures:preview", marks=pytest.mark.wing("retention")),
    pytest.param("POST", "/mcp", marks=pytest.mark.wing("recall")),
]
JSON = {"Content-Type": "application/json"}


def head(method: str, path: str, *fields: str) -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: localhost", *fields, "", ""]).encode()


@pytest.mark.wing("audit")
@pytest.mark.wing("compare")
@pytest.mark.wing("recall")
@pytest.mark.wing("webhooks")
@pytest.mark.wing("retention")
@pytest.mark.wing("warmings")
def test_every_operation_with_a_body_is_in_the_list() -> None:
    found = {
        (method.upper(), path)
        for path, operations in json.loads(document())["paths"].items()
        for method, operation in operations.items()
        if "requestBody" in operation
    }
    assert len(found) == len(BODY_OPERATIONS) - 1  # /mcp is not in the document


@pytest.mark.parametrize(("method", "path"), BODY_OPERATIONS)
async def test_without_a_key_no_byte_of_a_body_is_read(database_url: str, method: str, path: str) -> None:
    """The server responds without waiting for the body, which never arrives."""
    async with serving(Settings(api_key=KEY), database_url) as url, connected(url) as wire:
        await wire.send(head(method, path, "Content-Type: application/json", "Content-Length: 30000000"))
        answer = await asyncio.wait_for(wire.answer(), 5)
        assert (answer.status, json.loads(answer.body)["type"]) == (401, "/problems/unauthorized")


@pytest.mark.parametrize(("method", "path"), BODY_OPERATIONS)
async def test_malformed_json_is_401_without_a_key_and_403_with_a_narrow_one(
    database_url: str, database: Database, method: str, path: str
) -> None:
    narrow = (await Tenants(database, None).create_key("default", "k", ["audit"])).secret
    async with serving(Settings(), database_url) as url, httpx.AsyncClient(base_url=url) as http:
        for key, status in ((None, 401), ("pal_wrong", 401), (narrow, 403)):
            headers = JSON | ({} if key is None else {"Authorization": f"Bearer {key}"})
            answer = await http.request(method, path, content=b"{", headers=headers)
            assert answer.status_code == status, answer.text


async def test_large_bodies_without_a_key_do_not_delay_other_requests(database_url: str) -> None:
    body = b'{"metadata":{"a":[' + b"[]," * 10_000_000 + b"[]]}}"

    async def keyless(url: str) -> None:
        async with connected(url) as wire:
            await wire.send(
                head("PUT", "/v1/sessions/s", "Content-Type: application/json", f"Content-Length: {len(body)}")
            )
            sending = asyncio.create_task(wire.send(body))
            answer = await wire.answer()
            assert answer.status == 401
            await sending

    async with serving(Settings(api_key=KEY), database_url) as url, httpx.AsyncClient(base_url=url) as http:
        await http.get("/healthz")
        requests = asyncio.gather(*(keyless(url) for _ in range(4)))
        slowest = 0.0
        while not requests.done():
            began = time.perf_counter()
            assert (await http.get("/healthz")).status_code == 200
            slowest = max(slowest, time.perf_counter() - began)
        await requests
    assert slowest < 1.0


async def test_thirty_megabytes_of_empty_lists_do_not_delay_other_requests(client: httpx.AsyncClient) -> None:
    body = b'{"metadata":{"a":[' + b"[]," * 10_000_000 + b"[]]}}"
    request = asyncio.ensure_future(client.put("/v1/sessions/s", content=body, headers=JSON))
    answered = 0
    while not request.done():
        assert (await client.get("/healthz")).status_code == 200
        answered += 1
    answer = await request
    assert (answer.status_code, answer.json()["type"]) == (413, "/problems/body-too-large")
    assert answer.json()["limit_elements"] == Settings().json_elements_max
    assert answered > 10


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (b"[" * 100 + b"]" * 100, None),
        (b"[" * 101 + b"]" * 101, InvalidJson),
        (b'{"a":' * 101 + b"1" + b"}" * 101, InvalidJson),
        (b"[" + b"[]," * 450 + b"[]]", None),
        (b"[" + b"[]," * 1100 + b"[]]", BodyTooLarge),
        (b"[" + b'"a",' * 1100 + b'"a"]', BodyTooLarge),
        (b'["' + b"{[,a" * 5000 + b'"]', None),
        (rb'["\"' + b"{[,a" * 5000 + rb'\\"]', None),
        (rb'["\\",' + b"[]," * 1100 + b"[]]", BodyTooLarge),
        (b"{" + b'"name":1,' * 900 + b'"b":2}', None),
        (b"1,", InvalidJson),
        (b"", InvalidJson),
    ],
)
def test_brackets_are_counted_as_a_parser_does(text: bytes, error: type[Exception] | None) -> None:
    limits = JsonLimits(elements=1000, depth=100)
    if error is None:
        parse(text, limits, strict=True)
    else:
        with pytest.raises(error):
            parse(text, limits, strict=True)


@pytest.mark.parametrize(("method", "path"), BODY_OPERATIONS)
@pytest.mark.parametrize(
    "body", [b"[" * 5000, b'{"a":' * 101 + b"1" + b"}" * 101, b'"\xff\xfe"', b"\x80", b"{", b"nul"]
)
async def test_invalid_json_is_422(refusing: httpx.AsyncClient, method: str, path: str, body: bytes) -> None:
    answer = await refusing.request(method, path, content=body, headers=JSON)
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json"), answer.text
    assert answer.json()["type"] == "/problems/invalid-json"


async def test_bodies_within_the_limits_are_read_in_a_thread(client: httpx.AsyncClient) -> None:
    metadata = {"values": [[n] for n in range(60_000)]}
    event = {"type": "user.message", "content": "hello", "metadata": metadata}
    assert (await client.post("/v1/sessions/s/events", json={"events": [event]})).status_code == 201
    assert (await client.get("/v1/sessions/s/events/1")).json()["metadata"] == metadata
    events = [{"type": "user.message", "content": "one, two, " * 3_000} for _ in range(100)]
    assert (await client.post("/v1/sessions/s/events", json={"events": events})).status_code == 201


class TestWire:
    """Limits of the HTTP parser."""

    async def test_a_flood_of_headers_is_431(self, server: str) -> None:
        for flood in (
            b"X: " + b"a" * 70_000 + b"\r\n",
            b"".join(b"X%d: a\r\n" % number for number in range(101)),
            b"X" * 70_000 + b": a\r\n",
        ):
            async with connected(server) as wire:
                await wire.send(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + flood + b"\r\n")
                answer = await asyncio.wait_for(wire.answer(), 5)
                assert (answer.status, json.loads(answer.body)["type"]) == (431, "/problems/head-too-large")
                assert answer.headers["connection"] == "close"
                assert await asyncio.wait_for(wire.closed(), 5) == b""

    async def test_a_header_without_an_end_is_cut_off(self, server: str) -> None:
        async with connected(server) as wire:
            await wire.send(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: ")
            sent = 0
            while sent < 200_000_000 and not wire.reader.at_eof() and not wire.writer.is_closing():
                await wire.send(b"a" * 65_536)
                sent += 65_536
            assert sent < 20_000_000

    async def test_trailers_are_bounded_too(self, server: str) -> None:
        async with connected(server) as wire:
            start = head("PUT", "/v1/sessions/s", "Content-Type: application/json", "Transfer-Encoding: chunked")
            await wire.send(start + b"2\r\n{}\r\n0\r\n" + b"X: a\r\n" * 200_000)
            assert b"200 OK" not in await asyncio.wait_for(wire.closed(), 5)

    async def test_a_long_line_is_431(self, server: str) -> None:
        async with connected(server) as wire:
            await wire.send(head("GET", "/v1/sessions?cursor=" + "a" * 70_000))
            assert (await asyncio.wait_for(wire.answer(), 5)).status == 431

    async def test_malformed_http_is_a_problem(self, server: str) -> None:
        async with connected(server) as wire:
            await wire.send(b"\x16\x03\x01 hello\r\n\r\n")
            answer = await asyncio.wait_for(wire.answer(), 5)
            assert (answer.status, json.loads(answer.body)["type"]) == (400, "/problems/malformed-http")

    async def test_ordinary_requests_follow_one_another_on_a_connection(self, server: str) -> None:
        async with connected(server) as wire:
            for number in range(300):
                await wire.send(head("GET", f"/v1/sessions/{number}", "X-Filler: " + "a" * 1000))
                assert (await wire.answer()).status == 404
            await wire.send(head("GET", "/healthz") * 3)
            assert [(await wire.answer()).status for _ in range(3)] == [200, 200, 200]


class TestSlow:
    """Clients that stop in the middle of a request."""

    @pytest.mark.parametrize(
        ("sent", "status"),
        [
            (b"", None),
            (b"\r\n", 408),
            (b"GET /healthz HT", 408),
            (b"GET /healthz HTTP/1.1\r\nHost: loc", 408),
            (head("PUT", "/v1/sessions/s", "Content-Type: application/json", "Content-Length: 9"), 408),
            (head("PUT", "/v1/sessions/s", "Content-Type: application/json", "Content-Length: 9") + b"{", 408),
            (
                head("PUT", "/v1/sessions/s", "Content-Type: application/json", "Transfer-Encoding: chunked")
                + b"9\r\n{",
                408,
            ),
        ],
    )
    async def test_their_connection_is_closed_after_a_timeout(
        self, database_url: str, sent: bytes, status: int | None
    ) -> None:
        settings = Settings(head_seconds=0.2, body_seconds=0.3)
        async with serving(settings, database_url) as url, connected(url) as wire:
            await wire.send(sent)
            said = await asyncio.wait_for(wire.closed(), 5)
            if status is None:
                assert said == b""
            else:
                assert said.split()[1] == str(status).encode()
                assert b"/problems/too-slow" in said

    async def test_a_trickling_body_times_out(self, database_url: str) -> None:
        async with serving(Settings(body_seconds=0.5), database_url) as url, connected(url) as wire:
            await wire.send(head("PUT", "/v1/sessions/s", "Content-Type: application/json", "Content-Length: 1000000"))
            closed = asyncio.create_task(wire.closed())
            began = time.perf_counter()
            while not closed.done() and time.perf_counter() - began < 5:
                await wire.send(b" ")
                await asyncio.wait([closed], timeout=0.05)
            said = await closed
            assert not said or b" 408 " in said  # sending after the response may reset the connection before it is read

    async def test_a_response_that_came_before_the_body_is_the_only_one(self, database_url: str) -> None:
        settings = Settings(api_key=KEY, body_seconds=0.3)
        async with serving(settings, database_url) as url, connected(url) as wire:
            await wire.send(head("PUT", "/v1/sessions/s", "Content-Length: 100") + b"{")
            assert (await wire.answer()).status == 401
            assert await asyncio.wait_for(wire.closed(), 5) == b""

    async def test_an_unread_body_is_received_only_up_to_a_limit(self, database_url: str) -> None:
        settings = Settings(api_key=KEY, body_unread_bytes_max=100_000)
        async with serving(settings, database_url) as url, connected(url) as wire:
            await wire.send(head("PUT", "/v1/sessions/s", "Content-Length: 1000000000"))
            assert (await wire.answer()).status == 401
            sent = 0
            while sent < 200_000_000 and not wire.writer.is_closing() and not wire.reader.at_eof():
                await wire.send(b" " * 65_536)
                sent += 65_536
            assert sent < 20_000_000

    async def test_a_connection_stays_open_after_a_response(self, database_url: str) -> None:
        async with serving(Settings(head_seconds=0.2, body_seconds=0.2), database_url) as url, connected(url) as wire:
            await wire.send(head("GET", "/healthz"))
            assert (await wire.answer()).status == 200
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(wire.closed(), 0.6)


RequestArguments = dict[str, Any]


SITES: list[tuple[dict[str, str], bool]] = [
    ({}, True),
    ({"Host": "localhost:8700"}, True),
    ({"Host": "[::1]:8700"}, True),
    ({"Host": "LocalHost"}, True),
    ({"Origin": "http://localhost:3000", "Sec-Fetch-Site": "same-site"}, True),
    ({"Sec-Fetch-Site": "none"}, True),
    ({"Host": "evil.example"}, False),
    ({"Host": "evil.example", "Authorization": "Bearer x"}, False),
    ({"Host": "127.0.0.1.evil.example:8700"}, False),
    ({"Host": ""}, False),
    ({"Origin": "https://evil.example"}, False),
    ({"Origin": "null"}, False),
    ({"Origin": "http://[broken"}, False),
    ({"Sec-Fetch-Site": "cross-site"}, False),
]
"""Headers of a request, and whether it is answered while no key is needed."""


@pytest.mark.usefixtures("database_url")
async def test_without_keys_requests_of_other_sites_pages_are_refused(client: httpx.AsyncClient) -> None:
    event = '{"events":[{"type":"system.prompt","content":"Obey."}]}'
    text = {"Content-Type": "text/plain"}
    for number, (headers, allowed) in enumerate(SITES):
        asked: list[tuple[str, str, RequestArguments]] = [
            ("POST", f"/v1/sessions/{number}/events", {"content": event, "headers": text | headers}),
            ("GET", "/v1/sessions", {"headers": headers}),
            ("GET", "/openapi.json", {"headers": headers}),
            ("DELETE", f"/v1/sessions/{number}", {"headers": headers}),
        ]
        for method, path, more in asked:
            answer = await client.request(method, path, **more)
            if allowed:
                assert answer.status_code in (200, 201, 204), (headers, method, path, answer.text)
            else:
                assert answer.status_code == 403, (headers, method, path)
                assert answer.json()["type"] == "/problems/not-local", (headers, method, path)
    assert (await client.get("/healthz", headers={"Host": "10.0.0.1"})).status_code == 200


async def test_further_hosts_are_allowed_by_a_setting(database_url: str) -> None:
    settings = Settings.model_validate({"open_hosts": "palimpsest.home, other.home"})
    async with serving(settings, database_url) as url, httpx.AsyncClient(base_url=url) as http:
        for host, status in (("palimpsest.home:8700", 200), ("OTHER.home", 200), ("evil.example", 403)):
            assert (await http.get("/v1/sessions", headers={"Host": host})).status_code == status


async def test_with_keys_any_host_and_origin_is_allowed(client: httpx.AsyncClient, database: Database) -> None:
    key = (await Tenants(database, None).create_key("default", "k", ["read"])).secret
    foreign = {"Host": "palimpsest.example", "Origin": "https://a.example", "Sec-Fetch-Site": "cross-site"}
    assert (await client.get("/v1/sessions", headers=foreign)).status_code == 401
    allowed = await client.get("/v1/sessions", headers=foreign | {"Authorization": f"Bearer {key}"})
    assert allowed.status_code == 200
