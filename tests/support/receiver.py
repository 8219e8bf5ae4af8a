"""A receiver of webhooks on loopback that does as it is told, and checks signatures as the specification says."""

import asyncio
import base64
import hashlib
import hmac
import json
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request, Response

from tests.support.loopback import listening

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
SECONDS_MAX = 60


@dataclass(frozen=True)
class Call:
    """One request as it came."""

    headers: Mapping[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def value(self) -> dict[str, Any]:
        parsed: dict[str, Any] = json.loads(self.body)
        return parsed

    def is_signed_with(self, secret: str) -> bool:
        key = base64.b64decode(secret.split("_", 1)[1])
        signed = b".".join((self.id.encode(), self.headers["webhook-timestamp"].encode(), self.body))
        wanted = base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
        return f"v1,{wanted}" in self.headers["webhook-signature"].split(" ")


@dataclass
class Receiver:
    """Answers 204, or for each request the next of `statuses`; 0 is no answer at all until it is closed."""

    url: str = ""
    calls: list[Call] = field(default_factory=list)
    statuses: deque[int] = field(default_factory=deque)
    headers: dict[str, str] = field(default_factory=dict)
    _came: asyncio.Condition = field(default_factory=asyncio.Condition)
    _closing: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, request: Request) -> Response:
        async with self._came:
            self.calls.append(Call(dict(request.headers), await request.body()))
            self._came.notify_all()
        status = self.statuses.popleft() if self.statuses else 204
        if status == 0:
            await self._closing.wait()
        return Response(status_code=status or 204, headers=self.headers)

    async def called(self, times: int) -> list[Call]:
        """All calls, once there have been so many."""
        async with asyncio.timeout(SECONDS_MAX), self._came:
            await self._came.wait_for(lambda: len(self.calls) >= times)
        return list(self.calls)

    def close(self) -> None:
        self._closing.set()


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    """A receiver as long as the block lasts."""
    receiver = Receiver()
    app = FastAPI()
    app.add_api_route("/{path:path}", receiver.answer, methods=["POST", "GET"], response_model=None)
    async with listening(app) as url:
        receiver.url = f"{url}/hooks?tenant=1"
        try:
            yield receiver
        finally:
            receiver.close()
