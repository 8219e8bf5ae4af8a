"""Any ASGI application over real HTTP, on a free loopback port."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from starlette.types import ASGIApp

from app.api.protocol import WireLimits, bounded
from app.serve import KEEP_ALIVE_SECONDS


class Announcing(uvicorn.Server):
    """A server that says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: object = None) -> None:
        await super().startup()
        self.ready.set()

    def install_signal_handlers(self) -> None:
        """The test runner's own stay."""


@asynccontextmanager
async def listening(app: ASGIApp, limits: WireLimits | None = None) -> AsyncIterator[str]:
    """The base URL of an application that is served as long as the block lasts."""
    config = uvicorn.Config(
        app,
        host="127.0.0.1",
        port=0,
        http=bounded(limits or WireLimits()),
        log_level="warning",
        lifespan="on",
        ws="none",
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
    )
    server = Announcing(config)
    running = asyncio.create_task(server.serve())
    await server.ready.wait()
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await running
