"""Servers that the tests of a process share, where each test is a tenant of its own."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from itertools import count

from starlette.types import ASGIApp, Receive, Scope, Send

from app.runtime.settings import Settings
from app.store.engine import Database
from tests.support.tenants import tenant

Serve = Callable[..., AbstractAsyncContextManager[str]]


class Shared:
    """Servers on one database, one for each of the settings asked for. A request without a key has that of `key`."""

    def __init__(self, database_url: str, owner: Database, serve: Serve, stack: AsyncExitStack) -> None:
        self.database_url, self.key = database_url, ""
        self._owner, self._serve, self._stack = owner, serve, stack
        self._urls: dict[str, str] = {}
        self._numbers = count(1)

    async def next_tenant(self) -> None:
        """Make a tenant, and give its key to later requests."""
        self.key, _ = await tenant(self._owner, f"tenant-{next(self._numbers)}")

    async def url(self, settings: Settings) -> str:
        """Return the base URL of the server with these settings."""
        name = settings.model_dump_json()
        if name not in self._urls:
            serving = self._serve(settings, self.database_url, self._with_key)
            self._urls[name] = await self._stack.enter_async_context(serving)
        return self._urls[name]

    def _with_key(self, app: ASGIApp) -> ASGIApp:
        async def keyed(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                name, value = b"authorization", f"Bearer {self.key}"
                if scope["path"].startswith("/gateway/"):
                    name, value = b"x-palimpsest-key", self.key
                if all(sent != name for sent, _ in scope["headers"]):
                    scope = {**scope, "headers": [*scope["headers"], (name, value.encode())]}
            await app(scope, receive, send)

        return keyed


@asynccontextmanager
async def shared_servers(database_url: str, owner: Database, serve: Serve) -> AsyncIterator[Shared]:
    """Yield servers on a database that run until the block ends."""
    async with AsyncExitStack() as stack:
        yield Shared(database_url, owner, serve, stack)
