"""The log of a server: one line per request, without content, and each server error once."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from http import HTTPStatus
from typing import Any

import httpx
from starlette.types import Message, Receive, Scope, Send
from structlog.testing import capture_logs

from app.http.middleware import RequestLimits, RequestMiddleware
from app.store.engine import Database
from app.tenants import DEFAULT_TENANT
from tests.support.processes import Process, palimpsest
from tests.support.wings import PROBES


@asynccontextmanager
async def logging_server(
    database_url: str, **settings: str
) -> AsyncIterator[tuple[httpx.AsyncClient, Process, list[Any]]]:
    """Yield a client of a server process, the process, and a list that gets its log lines when it has ended."""
    ours = {"DATABASE_URL": database_url, "PORT": "0", "LOG_JSON": "true", **settings}
    process = await palimpsest("api", settings=ours)
    assert process.stdout is not None and process.stderr is not None
    lines: list[Any] = []
    try:
        while not (line := await process.stdout.readline()).startswith(b"palimpsest: serving on"):
            assert line, (await process.stderr.read()).decode()
        async with httpx.AsyncClient(base_url=line.decode().split()[-1], timeout=30) as http:
            yield http, process, lines
    finally:
        process.terminate()
        said = await process.stderr.read()
        await process.wait()
        lines += [json.loads(line) for line in said.splitlines()]


OURS = {"level", "timestamp", "milliseconds", "event"}


def request_fields(line: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a log line that describe its request."""
    assert line["milliseconds"] >= 0
    return {name: value for name, value in line.items() if name not in OURS}


async def test_each_request_is_one_line_without_content(database_url: str) -> None:
    event = {"type": "user.message", "content": "the secret plan"}
    async with logging_server(database_url, LOG_LEVEL="info") as (http, _, lines):
        sent = {"X-Request-Id": "mine-1"}
        answer = await http.post("/v1/sessions/s/events", json={"events": [event]}, headers=sent)
        assert (answer.status_code, answer.headers["x-request-id"]) == (201, "mine-1")
        made = await http.get("/v1/sessions/s/events", params={"limit": 777}, headers={"X-Request-Id": "a b"})
        assert made.status_code == 200
        for probe in PROBES:
            assert (await http.get(probe)).status_code == 200
    first, second = map(request_fields, lines)
    assert first == {
        "request_id": "mine-1",
        "method": "POST",
        "route": "/v1/sessions/{sid}/events",
        "status": 201,
        "bytes": len(answer.content),
        "tenant": str(DEFAULT_TENANT),
        "session": "s",
    }
    assert second["request_id"] == made.headers["x-request-id"] != "a b"
    assert re.fullmatch("[0-9a-f]{16}", second["request_id"])
    assert [line["level"] for line in lines] == ["info", "info"]
    assert "secret" not in str(lines) and "777" not in str(lines)


async def test_probes_are_logged_at_debug_level(database_url: str) -> None:
    async with logging_server(database_url, LOG_LEVEL="debug") as (http, _, lines):
        await http.get("/healthz")
    assert [(line["level"], line["route"]) for line in lines if line["event"] == "request"] == [("debug", "/healthz")]


async def test_all_lines_of_a_request_have_its_id(database_url: str, database: Database) -> None:
    await database.execute("ALTER TABLE views RENAME TO views_gone")
    async with logging_server(database_url) as (http, _, lines):
        await http.get("/v1/sessions/mine/context", headers={"X-Request-Id": "r-7"})
    of_the_request = [line for line in lines if line["event"] != "warm-up"]
    assert [(line["event"], line["request_id"], line["session"]) for line in of_the_request] == [
        ("unhandled", "r-7", "mine"),
        ("request", "r-7", "mine"),
    ]


async def test_an_invalid_session_id_is_not_logged(database_url: str) -> None:
    async with logging_server(database_url) as (http, _, lines):
        await http.get("/v1/sessions/a%1B[31m%0Ab")
    assert [(line["status"], "session" in line, "path" in line) for line in lines] == [(422, False, False)]


async def test_a_refused_request_is_one_line_with_its_session_id(database_url: str) -> None:
    async with logging_server(database_url) as (http, _, lines):
        await http.get("/v1/sessions/mine")
        await http.put("/v1/sessions/mine", json={"colour": "red"})
        await http.put("/v1/sessions/mine", json={})
        await http.get("/v1/sessions/mine", headers={"Authorization": "Bearer wrong"})
        await http.get("/no%0Athing")
    assert [(line["method"], line["status"], line.get("problem"), line.get("session")) for line in lines] == [
        ("GET", 404, "not-found", "mine"),
        ("PUT", 422, "invalid-request", "mine"),
        ("PUT", 201, None, "mine"),
        ("GET", 401, "unauthorized", "mine"),
        ("GET", 404, "not-found", None),
    ]
    assert [line["route"] for line in lines] == ["/v1/sessions/{sid}"] * 4 + ["unmatched"]
    assert [line["path"] for line in lines if "path" in line] == ["/no%0Athing"]


async def test_a_server_error_is_logged_once(database_url: str, database: Database) -> None:
    await database.execute("ALTER TABLE policies RENAME TO policies_gone")
    async with logging_server(database_url) as (http, _, lines):
        answer = await http.get("/v1/policies")
        assert (answer.status_code, answer.json()["type"]) == (500, "/problems/internal")
    assert [line for line in lines if "exception" in line or "policies_gone" in json.dumps(line)] == lines[:1]
    assert [(line["event"], line.get("status")) for line in lines] == [("unhandled", None), ("request", 500)]


async def test_a_named_status_is_logged_as_a_number() -> None:
    async def answer(_: Scope, __: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": HTTPStatus.OK, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def nothing() -> Message:
        raise AssertionError("nobody reads the request")

    async def sent(_: Message) -> None:
        pass

    scope = {"type": "http", "method": "POST", "scheme": "http", "path": "/mcp", "raw_path": b"/mcp", "headers": []}
    middleware = RequestMiddleware(
        answer, limits=RequestLimits(1, 1, 1), open_hosts=(), observe=lambda exchange: nullcontext()
    )
    with capture_logs() as lines:
        await middleware(scope, nothing, sent)
    assert [repr(line["status"]) for line in lines] == ["200"]
