"""A proxy on both sides of each arm, which records every call and its usage.

An agent calls `/to/ARM/TASK/…`. That is forwarded to the arm, which calls `/from/ARM/…`, and that to the provider. The
agent's side has steps, latency and refusals. The provider's side has the bill, with the calls that the arm makes for
itself. Bodies pass unchanged, but for the provider's own editing, which its arm adds.
"""

import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import httpx2
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from bench.tasks.billing import is_too_long, usage_of
from bench.tasks.ledger import AGENT, PROVIDER, Call, Ledger

CALLS: Final = ("/messages", "/chat/completions", "/responses")
"""Ends of the paths that a model answers."""
KEPT_BYTES_MAX: Final = 64 << 20
OF_ONE_CONNECTION: Final = {
    "host",
    "content-length",
    "connection",
    "transfer-encoding",
    "keep-alive",
    "accept-encoding",
}
EDITING_BETA: Final = "context-management-2025-06-27"


@dataclass(frozen=True, slots=True)
class Arm:
    """A way to manage the context: the address that the agent's calls are sent to.

    `editing` is added to each request's body as `context_management`. `begin` is called before each attempt with the
    name of its session, which each call has in `x-palimpsest-session` if `named`.
    """

    name: str
    url: str
    editing: Mapping[str, Any] | None = None
    named: bool = False
    begin: Callable[[str], Any] | None = None


@dataclass(slots=True)
class Meter:
    """The proxy's arms, and the attempt that each of them is at."""

    ledger: Ledger
    provider: str
    url: str = ""
    arms: dict[str, Arm] = field(default_factory=dict)
    current: dict[str, tuple[str, int]] = field(default_factory=dict)

    async def begin(self, arm: Arm, task: str) -> int:
        """Begin an attempt of a task and return its number; one attempt at a time in each arm."""
        attempt = self.ledger.attempt(arm.name, task)
        self.current[arm.name] = task, attempt
        if arm.begin is not None:
            await arm.begin(session_of(arm.name, task, attempt))
        return attempt

    def address(self, arm: Arm, task: str) -> str:
        """Return the base URL for the agent."""
        return f"{self.url}/to/{arm.name}/{task}"

    def upstream(self, arm: str) -> str:
        """Return the base URL that an arm must use as its provider's."""
        return f"{self.url}/from/{arm}"


def session_of(arm: str, task: str, attempt: int) -> str:
    """Return the name of an attempt's session."""
    return f"tasks.{arm}.{task}.{attempt}"


@asynccontextmanager
async def serving(ledger: Ledger, provider: str, port: int) -> AsyncIterator[Meter]:
    """Serve a meter on loopback; port 0 is a free one."""
    meter = Meter(ledger, provider.rstrip("/"))
    async with httpx2.AsyncClient(timeout=httpx2.Timeout(600, connect=10)) as http:

        async def to_arm(request: Request) -> Response:
            arm = meter.arms[request.path_params["arm"]]
            return await _forward(meter, http, request, AGENT, arm.url, arm)

        async def to_provider(request: Request) -> Response:
            return await _forward(meter, http, request, PROVIDER, meter.provider, None)

        methods = ["GET", "POST"]
        app = Starlette(
            routes=[
                Route("/to/{arm}/{task}/{path:path}", to_arm, methods=methods),
                Route("/from/{arm}/{path:path}", to_provider, methods=methods),
            ]
        )
        async with listening(app, port) as meter.url:
            yield meter


@asynccontextmanager
async def listening(app: Starlette, port: int = 0) -> AsyncIterator[str]:
    """Serve an application on loopback until the block ends and yield its base URL."""
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error", lifespan="off", ws="none"))
    server.config.load()
    server.lifespan = server.config.lifespan_class(server.config)
    await server.startup()
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        await server.shutdown()


async def _forward(
    meter: Meter, http: httpx2.AsyncClient, request: Request, side: str, base: str, arm: Arm | None
) -> Response:
    name, path = request.path_params["arm"], "/" + request.path_params["path"]
    task, attempt = meter.current[name]
    headers = {key: value for key, value in request.headers.items() if key not in OF_ONE_CONNECTION}
    body = await request.body()
    if arm is not None and path.endswith(CALLS):
        body = _changed(arm, session_of(name, task, attempt), headers, body)
    headers["accept-encoding"] = "identity"
    started = time.perf_counter()
    url = f"{base}{path}" + (f"?{request.url.query}" if request.url.query else "")

    def record(status: int, kept: bytes) -> None:
        if path.endswith(CALLS):
            seconds = round(time.perf_counter() - started, 4)
            found = usage_of(kept) if status < 400 else None
            meter.ledger.add(Call(side, name, task, attempt, status, seconds, found, is_too_long(status, kept)))

    try:
        answer = await http.send(http.build_request(request.method, url, headers=headers, content=body), stream=True)
    except httpx2.TransportError as error:
        record(502, b"")
        return Response(f"no answer from {base}: {error!r}", 502)

    async def relayed() -> AsyncIterator[bytes]:
        kept = bytearray()
        try:
            async for piece in answer.aiter_raw():
                if len(kept) < KEPT_BYTES_MAX:
                    kept += piece
                yield piece
        finally:
            record(answer.status_code, bytes(kept))
            await answer.aclose()

    passed = {key: value for key, value in answer.headers.items() if key not in OF_ONE_CONNECTION}
    return StreamingResponse(relayed(), answer.status_code, passed)


def _changed(arm: Arm, session: str, headers: dict[str, str], body: bytes) -> bytes:
    """Return the body for an arm, and add its headers."""
    if arm.named:
        headers["x-palimpsest-session"] = session
    if arm.editing is None:
        return body
    betas = [headers["anthropic-beta"]] if "anthropic-beta" in headers else []
    headers["anthropic-beta"] = ",".join([*betas, EDITING_BETA])
    return json.dumps({**json.loads(body), "context_management": arm.editing}).encode()
