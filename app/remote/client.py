"""A client for the requests that the commands make."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

import httpx2

from app.core.log.events import Json
from app.recordings.recording import AppendEvents, AppendMessages, Object

_PAGE_EVENTS: Final = 500
_CREATED: Final = 201
_TOO_FAST: Final = 429


class RequestFailed(Exception):
    """A request that did not succeed; `type` is the slug of the server's problem, `unreachable` or `no-json`.

    `fields` is the whole problem as the server sent it, {} without one.
    """

    def __init__(self, type: str, detail: str, fields: Object | None = None) -> None:
        super().__init__(f"{type}: {detail}")
        self.type = type
        self.detail = detail
        self.fields = fields or {}


class Client:
    """A client of one server. Every method raises RequestFailed unless the answer is a success.

    One that `waits` asks again, when the server says, what came too fast for it.
    """

    def __init__(self, http: httpx2.AsyncClient, *, waits: bool = False) -> None:
        self._http = http
        self._waits = waits
        self._made: list[str] = []

    async def put_session(
        self, session: str, policy: str | Mapping[str, Json] | None, model: str | None, metadata: Object | None = None
    ) -> Object:
        """Create or find a session."""
        body = {"policy": policy, "model": model, "metadata": metadata}
        return await self._send("PUT", f"/v1/sessions/{session}", {k: v for k, v in body.items() if v is not None})

    async def session(self, session: str) -> Object:
        """A session: its settings, and where its log ends."""
        return await self._send("GET", f"/v1/sessions/{session}")

    async def delete_session(self, session: str) -> None:
        """Erase a session."""
        await self._send("DELETE", f"/v1/sessions/{session}")

    async def erase_made(self) -> tuple[str, ...]:
        """Erase the sessions that this client created; return what is to be said of those that are still there."""
        left = []
        while self._made:
            session = self._made.pop()
            try:
                await self.delete_session(session)
            except RequestFailed as problem:
                if problem.type != "not-found":
                    left.append(f"session {session} stays on the server: {problem}")
        return tuple(left)

    async def append(self, session: str, step: AppendEvents | AppendMessages) -> tuple[Object, ...]:
        """Append a step; return the answer's events in log order."""
        if isinstance(step, AppendEvents):
            answer = await self._send("POST", f"/v1/sessions/{session}/events", {"events": step.events})
        else:
            body = {"format": step.format, "messages": step.messages}
            answer = await self._send("POST", f"/v1/sessions/{session}/messages", body)
        return tuple(answer["events"])

    async def append_encoded(self, session: str, events: Sequence[str]) -> tuple[Object, ...]:
        """Append events that are JSON already; return the answer's events in log order."""
        data = f'{{"events":[{",".join(events)}]}}'.encode()
        return tuple((await self._ask("POST", f"/v1/sessions/{session}/events", data))["events"])

    async def context(self, session: str, body: Object) -> Object:
        """The context for one model call."""
        return await self._send("POST", f"/v1/sessions/{session}/context", body)

    async def log(self, session: str) -> AsyncIterator[Object]:
        """The whole log, page by page."""
        async for event in self._pages(f"/v1/sessions/{session}/events"):
            yield event

    async def event(self, session: str, seq: int) -> Object:
        """One event of the log."""
        return await self._send("GET", f"/v1/sessions/{session}/events/{seq}")

    async def history(self, session: str, seq: int, view: str | None) -> AsyncIterator[Object]:
        """What the model saw of an event in each call, the oldest first, page by page."""
        asked = {} if view is None else {"view": view}
        async for item in self._pages(f"/v1/sessions/{session}/events/{seq}/history", **asked):
            yield item

    async def lines(self, session: str) -> AsyncIterator[Object]:
        """The lines of a session, in the order in which they began, page by page."""
        async for line in self._pages(f"/v1/sessions/{session}/lines"):
            yield line

    async def calls(self) -> AsyncIterator[Object]:
        """The recorded calls of all sessions, the newest first, page by page."""
        async for call in self._pages("/v1/audit/calls"):
            yield call

    async def call_again(self, session: str, call_id: str) -> Object:
        """A recorded call, rendered again."""
        return await self._send("GET", f"/v1/sessions/{session}/calls/{call_id}/context")

    async def _pages(self, path: str, **asked: str) -> AsyncIterator[Object]:
        params: dict[str, str | int] = {"limit": _PAGE_EVENTS, **asked}
        while True:
            page = await self._send("GET", path, params=params)
            for item in page["items"]:
                yield item
            if page["next_cursor"] is None:
                return
            params["cursor"] = page["next_cursor"]

    async def _send(
        self, method: str, path: str, body: Json = None, params: dict[str, str | int] | None = None
    ) -> dict[str, Any]:
        # Escaped JSON, so that a lone surrogate of a recording reaches the server, which is to judge it.
        return await self._ask(method, path, None if body is None else json.dumps(body).encode(), params)

    async def _ask(
        self, method: str, path: str, data: bytes | None, params: dict[str, str | int] | None = None
    ) -> dict[str, Any]:
        headers = {"content-type": "application/json"} if data is not None else None
        try:
            response = await self._http.request(method, path, content=data, headers=headers, params=params)
            while self._waits and response.status_code == _TOO_FAST and "retry-after" in response.headers:
                await asyncio.sleep(float(response.headers["retry-after"]))
                response = await self._http.request(method, path, content=data, headers=headers, params=params)
            answer = response.json() if response.content else {}
        except httpx2.HTTPError as error:
            raise RequestFailed("unreachable", f"{method} {path}: {type(error).__name__} {error}") from error
        except ValueError as error:
            raise RequestFailed("no-json", f"{method} {path} answered {response.status_code} without JSON") from error
        if response.is_success and isinstance(answer, dict):
            if method == "PUT" and response.status_code == _CREATED:
                self._made.append(path.rsplit("/", 1)[-1])
            return answer
        problem = answer if isinstance(answer, dict) else {}
        slug = str(problem.get("type", f"http-{response.status_code}")).rsplit("/", 1)[-1]
        detail = str(problem.get("detail") or problem.get("title") or f"status {response.status_code}")
        raise RequestFailed(slug, detail, problem)
