"""The recall tool over MCP, called by the SDK's client over real HTTP."""

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from mcp.client.session import ClientSession
from mcp.client.streamable_http import streamable_http_client

from app.store.engine import Database
from app.tenants import Tenants

pytestmark = pytest.mark.wing("recall")

EVENTS = {"events": [{"type": "user.message", "content": "the port is 8123"}]}
PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
ACCEPT = {"Accept": "application/json, text/event-stream"}


@asynccontextmanager
async def session(
    server: str, key: str | None = None, *, path: str = "/mcp", bound: str | None = None
) -> AsyncIterator[ClientSession]:
    """Yield an initialized client; `bound` names a session in a header."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    headers |= {} if bound is None else {"x-palimpsest-session": bound}
    async with (
        httpx.AsyncClient(headers=headers, timeout=30) as http,
        streamable_http_client(f"{server}{path}", http_client=http) as streams,
        ClientSession(*streams[:2]) as mcp,
    ):
        await mcp.initialize()
        yield mcp


def text(result: Any) -> str:
    [part] = result.content
    return str(part.text)


async def test_the_tool_is_listed_with_the_session_it_needs(server: str) -> None:
    async with session(server) as mcp:
        [tool] = (await mcp.list_tools()).tools
    assert (tool.name, tool.input_schema["required"]) == ("recall", ["session"])
    assert set(tool.input_schema["properties"]) == {"session", "query", "seqs", "paths", "limit", "offset"}
    assert tool.annotations is not None and tool.annotations.read_only_hint


async def test_the_tool_answers_as_the_api_does(server: str, client: httpx.AsyncClient) -> None:
    assert (await client.post("/v1/sessions/s/events", json=EVENTS)).status_code == 201
    over_http = (await client.post("/v1/sessions/s/recall", json={"query": "port"})).json()
    async with session(server) as mcp:
        found = await mcp.call_tool("recall", {"session": "s", "query": "port"})
        assert not found.is_error
        assert json.loads(text(found)) == over_http
        assert over_http["items"][0]["content"] == "the port is 8123"


@pytest.mark.parametrize("way", [{"path": "/mcp/s/s"}, {"bound": "s"}, {"bound": "s", "path": "/mcp/s/other"}])
async def test_a_bound_client_needs_no_session(server: str, client: httpx.AsyncClient, way: dict[str, str]) -> None:
    assert (await client.post("/v1/sessions/s/events", json=EVENTS)).status_code == 201
    async with session(server, **way) as mcp:
        [tool] = (await mcp.list_tools()).tools
        assert "session" not in tool.input_schema["properties"]
        assert "required" not in tool.input_schema
        found = await mcp.call_tool("recall", {"query": "port"})
        assert not found.is_error
        assert json.loads(text(found))["items"][0]["content"] == "the port is 8123"
        other = await mcp.call_tool("recall", {"session": "other", "query": "port"})
        assert other.is_error and "session" in text(other)


async def test_a_bound_client_follows_its_session_to_another_line(server: str, client: httpx.AsyncClient) -> None:
    assert (await client.post("/v1/sessions/s/events", json=EVENTS)).status_code == 201
    async with session(server, path="/mcp/s/s") as mcp:
        assert (await client.post("/v1/sessions/s/rewind", json={"to": 0})).status_code == 200
        said = {"events": [{"type": "user.message", "content": "the port is 9000"}]}
        assert (await client.post("/v1/sessions/s/events", json=said)).status_code == 201
        assert "9000" in text(await mcp.call_tool("recall", {"query": "port"}))
    async with session(server, path="/mcp/s/s@line.1") as mcp:
        assert "8123" in text(await mcp.call_tool("recall", {"query": "port"}))


async def test_a_key_binds_no_client_outside_its_prefix(client: httpx.AsyncClient, database: Database) -> None:
    tenants = Tenants(database, None)
    key = (await tenants.create_key("default", "k", ["read"], session_prefix="ours-")).secret
    headers = ACCEPT | {"Authorization": f"Bearer {key}"}
    for way, status in (
        (("/mcp/s/ours-1", {}), 200),
        (("/mcp/s/theirs-1", {}), 404),
        (("/mcp", {"x-palimpsest-session": "theirs-1"}), 404),
        (("/mcp/s/ours-1", {"x-palimpsest-session": "theirs-1"}), 404),
        (("/mcp", {"x-palimpsest-session": "no name"}), 422),
    ):
        path, named = way
        answer = await client.post(path, json=PING, headers=headers | named)
        assert answer.status_code == status, (way, answer.text)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"query": "x"}, "session"),
        ({"session": "none", "query": "x"}, "no session"),
        ({"session": "s"}, "one of seqs, paths and query"),
        ({"session": "s", "seqs": ["one"]}, "seqs.0"),
        ({"session": "s", "query": "x", "words": 1}, "words"),
    ],
)
async def test_invalid_arguments_are_reported_to_the_model(
    server: str, client: httpx.AsyncClient, arguments: dict[str, Any], says: str
) -> None:
    assert (await client.post("/v1/sessions/s/events", json=EVENTS)).status_code == 201
    async with session(server) as mcp:
        found = await mcp.call_tool("recall", arguments)
    assert found.is_error and says in text(found)


async def test_keys_and_tenants_apply_to_mcp(server: str, client: httpx.AsyncClient, database: Database) -> None:
    tenants = Tenants(database, None)
    ours = (await tenants.create_key("default", "k", ["read"])).secret
    theirs = (await tenants.create_key("other", "k", ["read"])).secret
    writer = (await tenants.create_key("default", "k", ["ingest"])).secret
    headers = {"Authorization": f"Bearer {writer}"}
    assert (await client.post("/v1/sessions/s/events", json=EVENTS, headers=headers)).status_code == 201
    async with session(server, ours) as mcp:
        assert "8123" in text(await mcp.call_tool("recall", {"session": "s", "seqs": [1]}))
    async with session(server, theirs) as mcp:
        assert (await mcp.call_tool("recall", {"session": "s", "seqs": [1]})).is_error
    for key, status in ((None, 401), ("pal_" + "x" * 43, 401), (writer, 403)):
        headers = ACCEPT | ({} if key is None else {"Authorization": f"Bearer {key}"})
        answer = await client.post("/mcp", json=PING, headers=headers)
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:8700"}, 200),
        ({"Host": "[::1]:8700"}, 200),
        ({"Origin": "http://localhost:3000"}, 200),
        ({"Host": "attacker.example:8700"}, 403),
        ({"Host": "127.0.0.1.attacker.example"}, 403),
        ({"Origin": "https://attacker.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://[broken"}, 403),
    ],
)
async def test_without_a_key_only_local_requests_are_answered(
    refusing: httpx.AsyncClient, headers: dict[str, str], status: int
) -> None:
    answer = await refusing.post("/mcp", json=PING, headers=ACCEPT | headers)
    assert answer.status_code == status, answer.text


async def test_with_a_key_any_host_is_allowed(client: httpx.AsyncClient, database: Database) -> None:
    key = (await Tenants(database, None).create_key("default", "k", ["read"])).secret
    headers = ACCEPT | {"Authorization": f"Bearer {key}", "Host": "palimpsest.example", "Origin": "https://a.example"}
    assert (await client.post("/mcp", json=PING, headers=headers)).status_code == 200


async def test_get_and_delete_are_not_allowed(client: httpx.AsyncClient) -> None:
    for method, path in (("GET", "/mcp"), ("DELETE", "/mcp"), ("OPTIONS", "/mcp"), ("GET", "/mcp/s/s")):
        answer = await client.request(method, path, headers=ACCEPT)
        assert (answer.status_code, answer.headers.get("allow")) == (405, "POST")
        assert answer.json()["type"] == "/problems/method-not-allowed"


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"1e999", b"-1e999"])
async def test_numbers_that_json_does_not_have_are_refused(client: httpx.AsyncClient, number: bytes) -> None:
    body = b'{"jsonrpc":"2.0","id":%s,"method":"ping"}' % number
    answer = await client.post("/mcp", content=body, headers=ACCEPT | {"Content-Type": "application/json"})
    assert answer.status_code == 422


def test_the_sdk_is_imported_only_on_use() -> None:
    code = "import sys; import app.main; sys.exit('mcp.server' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
