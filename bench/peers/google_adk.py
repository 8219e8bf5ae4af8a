"""Google ADK's `DatabaseSessionService`."""

import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from google.adk.events.event import Event
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.database_session_service import DatabaseSessionService
from google.adk.sessions.schemas.v1 import StorageEvent
from google.adk.sessions.session import Session
from google.genai import types

from bench.peers.conversation import NEWEST, Message
from bench.peers.process import serve

SESSION: Final = {"app_name": "bench", "user_id": "bench", "session_id": "one"}
AT_ONCE: Final = 1_000
"""Rows of one transaction while filling."""


class GoogleADK:
    """`append_event`, and `get_session` with `num_recent_events`: the service counts no tokens."""

    def __init__(self, service: DatabaseSessionService, session: Session) -> None:
        self._service, self._session = service, session

    def native(self, given: Message) -> Event:
        """Return an event with one part."""
        by_user = given["role"] == "user"
        content = types.Content(role="model" if given["role"] == "assistant" else "user", parts=[_part(given)])
        return Event(author="user" if by_user else "agent", invocation_id="invocation", content=content)

    async def fill(self, natives: Sequence[Event]) -> None:
        """Insert rows of the service's own class, a microsecond apart, because it takes one event a call."""
        begun = time.time() - len(natives) / 1e6
        for number, event in enumerate(natives):
            event.timestamp = begun + number / 1e6
        for start in range(0, len(natives), AT_ONCE):
            async with self._service.database_session_factory() as sql, sql.begin():
                sql.add_all(StorageEvent.from_event(self._session, event) for event in natives[start : start + AT_ONCE])
        self._session = await self._read()

    async def append(self, native: Event) -> None:
        await self._service.append_event(self._session, native)

    async def context(self) -> Sequence[Event]:
        self._session = await self._read()
        events: list[Event] = self._session.events
        return events

    async def _read(self) -> Session:
        found = await self._service.get_session(**SESSION, config=GetSessionConfig(num_recent_events=NEWEST))
        assert found is not None
        return found


def _part(given: Message) -> types.Part:
    if given["role"] == "tool":
        response = {"result": given["content"]}
        answer = types.FunctionResponse(id=given["tool_call_id"], name="search", response=response)
        return types.Part(function_response=answer)
    for call in given.get("tool_calls", ()):
        arguments: dict[str, Any] = json.loads(call["function"]["arguments"])
        return types.Part(function_call=types.FunctionCall(id=call["id"], name="search", args=arguments))
    return types.Part(text=given["content"])


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[GoogleADK]:
    async with DatabaseSessionService(url) as service:
        yield GoogleADK(service, await service.create_session(**SESSION))


if __name__ == "__main__":
    serve(opened, "google-adk")
