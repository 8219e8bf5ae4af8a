"""What the log of a server says of its requests: each that was refused in one line, each failure of ours once."""

import json
import os
import signal
import sys
from asyncio import create_subprocess_exec
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from app.store.engine import Database


@asynccontextmanager
async def logged(database_url: str, **settings: str) -> AsyncIterator[tuple[httpx.AsyncClient, Process, list[Any]]]:
    """A client of a server process, and once that has ended, the lines of its log."""
    ours = {"DATABASE_URL": database_url, "PORT": "0", "LOG_JSON": "true", **settings}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PALIMPSEST_")}
    environment |= {f"PALIMPSEST_{name}": value for name, value in ours.items()}
    command = (sys.executable, "-m", "app.cli", "api")
    process = await create_subprocess_exec(*command, env=environment, stdout=PIPE, stderr=PIPE)
    assert process.stdout is not None and process.stderr is not None
    lines: list[Any] = []
    try:
        while not (line := await process.stdout.readline()).startswith(b"palimpsest: serving on"):
            assert line, (await process.stderr.read()).decode()
        async with httpx.AsyncClient(base_url=line.decode().split()[-1], timeout=30) as http:
            yield http, process, lines
    finally:
        process.send_signal(signal.SIGTERM)
        said = await process.stderr.read()
        await process.wait()
        lines += [json.loads(line) for line in said.splitlines()]


async def test_what_was_refused_is_one_line_with_the_sessions_name(database_url: str) -> None:
    async with logged(database_url) as (http, _, lines):
        await http.get("/v1/sessions/mine")
        await http.put("/v1/sessions/mine", json={"colour": "red"})
        await http.put("/v1/sessions/mine", json={})
        await http.get("/v1/sessions/mine", headers={"Authorization": "Bearer wrong"})
        await http.get("/no%0Athing")
    assert [(line["method"], line["path"], line["status"], line["problem"]) for line in lines] == [
        ("GET", "/v1/sessions/mine", 404, "not-found"),
        ("PUT", "/v1/sessions/mine", 422, "invalid-request"),
        ("GET", "/v1/sessions/mine", 401, "unauthorized"),
        ("GET", "/no%0Athing", 404, "not-found"),
    ]


async def test_a_failure_of_ours_is_logged_once(database_url: str, database: Database) -> None:
    await database.execute("ALTER TABLE policies RENAME TO policies_gone")
    async with logged(database_url) as (http, _, lines):
        answer = await http.get("/v1/policies")
        assert (answer.status_code, answer.json()["type"]) == (500, "/problems/internal")
    assert [line for line in lines if "exception" in line or "policies_gone" in json.dumps(line)] == lines[:1]
    assert [(line["event"], line.get("status")) for line in lines] == [("unhandled", None), ("request", 500)]
