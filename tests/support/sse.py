"""A client of server-sent events, written from the specification and independent of our code."""

import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx


@dataclass(frozen=True)
class Event:
    """A dispatched event; a comment has the kind `comment`."""

    kind: str
    id: str | None
    data: Any


@asynccontextmanager
async def streaming(
    base_url: str,
    path: str,
    *,
    last_id: str | None = None,
    headers: dict[str, str] | None = None,
    verify: ssl.SSLContext | bool = True,
    **params: Any,
) -> AsyncIterator[AsyncIterator[Event]]:
    """Open a stream on its own connection and yield its events; the connection closes with the block."""
    asked = {**(headers or {}), **({} if last_id is None else {"Last-Event-ID": last_id})}
    async with (
        httpx.AsyncClient(base_url=base_url, timeout=30, verify=verify) as http,
        http.stream("GET", path, params=params, headers=asked) as answer,
    ):
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield _events(answer)


async def take(events: AsyncIterator[Event], number: int) -> list[Event]:
    """Return the next `number` events, without comments."""
    found: list[Event] = []
    while len(found) < number:
        event = await anext(events)
        if event.kind != "comment":
            found.append(event)
    return found


async def _events(answer: httpx.Response) -> AsyncIterator[Event]:
    kind, data, last_id = "", [], None
    async for line in answer.aiter_lines():
        if not line:
            if data:
                yield Event(kind or "message", last_id, json.loads("\n".join(data)))
            kind, data = "", []
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not name:
            yield Event("comment", last_id, value)
        elif name == "event":
            kind = value
        elif name == "data":
            data.append(value)
        elif name == "id":
            last_id = value
