"""A webhook receiver on loopback with scripted statuses that checks signatures as the specification says."""

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
    """A request as received."""

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
    """A receiver that answers 204, or the next of `statuses`; 0 delays the response until the receiver closes."""

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
        """Return all calls once there have been `times` of them."""
        async with asyncio.timeout(SECONDS_MAX), self._came:
            await self._came.wait_for(lambda: len(self.calls) >= times)
        return list(self.calls)

    def close(self) -> None:
        self._closing.set()


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    """Serve a receiver until the block ends."""
    receiver = Receiver()
    app = FastAPI()
    app.add_api_route("/{path:path}", receiver.answer, methods=["POST", "GET"], response_model=None)
    async with listening(app) as url:
        receiver.url = f"{url}/hooks?tenant=1"
        try:
            yield receiver
        finally:
            receiver.close()
