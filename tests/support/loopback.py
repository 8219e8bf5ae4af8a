"""ASGI applications served over real HTTP on a free loopback port."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from app.http.protocol import WireLimits, protocol_class
from app.runtime.serve import KEEP_ALIVE_SECONDS

TICK_SECONDS: Final = 0.1
CLOSING_SECONDS: Final = 0.001


class SignalingServer(uvicorn.Server):
    """A server that signals when it listens, and stops when it is asked to; uvicorn only polls, every 0.1 seconds."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()
        self.stop_requested = asyncio.Event()

    async def startup(self, sockets: object = None) -> None:
        await super().startup()
        self.ready.set()

    async def main_loop(self) -> None:
        ticks = 0
        while not await self.on_tick(ticks):
            ticks += 1
            with suppress(TimeoutError):
                await asyncio.wait_for(self.stop_requested.wait(), TICK_SECONDS)

    async def shutdown(self, sockets: object = None) -> None:
        """Answer requests in progress, then end the lifespan, as uvicorn does."""
        for server in self.servers:
            server.close()
        state = self.server_state
        for connection in list(state.connections):
            connection.shutdown()
        while state.connections or state.tasks:  # noqa: ASYNC110 - uvicorn's sets have no event to wait for
            await asyncio.sleep(CLOSING_SECONDS)
        for server in self.servers:
            await server.wait_closed()
        await self.lifespan.shutdown()

    def stop(self) -> None:
        """Make the server shut down."""
        self.should_exit = True
        self.stop_requested.set()

    def install_signal_handlers(self) -> None:
        """Keep the test runner's signal handlers."""


@asynccontextmanager
async def listening(app: ASGIApp, limits: WireLimits | None = None) -> AsyncIterator[str]:
    """Serve an application until the block ends and yield its base URL."""
    config = uvicorn.Config(
        app,
        host="127.0.0.1",
        port=0,
        http=protocol_class(limits or WireLimits()),
        log_level="warning",
        lifespan="on",
        ws="none",
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
    )
    server = SignalingServer(config)
    running = asyncio.create_task(server.serve())
    await server.ready.wait()
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.stop()
        await running
