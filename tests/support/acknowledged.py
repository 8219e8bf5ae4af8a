"""Agents that note what they were acknowledged, and the check that all of it is there, once.

Each repeats a request that was refused for want of the database, as it was, until it is done.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, Final

import httpx

PAUSE_SECONDS: Final = 0.05
"""An agent's own pace between two tries: nothing tells it when the database is back."""
MODEL_SECONDS: Final = 0.2
"""What an agent's model takes."""
POLICY: Final = {"window_tokens": 6_000, "reserve_tokens": 0}
WORDS: Final = "The build of the parser takes the configuration from its own folder and writes the result to disk. " * 8

Json = dict[str, Any]


class Agent:
    """An agent at work in a session of its own: it appends, asks for a context, appends the reply and reports."""

    def __init__(self, http: httpx.AsyncClient, session: str) -> None:
        self._http, self.session = http, session
        self._numbers = count(1)
        self.events: list[str] = []
        """The ids of the acknowledged events, in their order."""
        self.calls: dict[str, str] = {}
        """The SHA-256 of each acknowledged context."""
        self.reported: dict[str, int] = {}
        """The reported input tokens of each call."""
        self.refused = asyncio.Event()
        """A request was refused."""

    async def begin(self) -> None:
        """Make the session."""
        answer = await self._http.put(f"/v1/sessions/{self.session}", json={"policy": POLICY})
        assert answer.status_code == 201, answer.text

    async def append(self, kind: str = "user.message") -> str:
        """Append an event; return its id."""
        name = f"{self.session}-{next(self._numbers)}"
        event = {"type": kind, "id": name, "content": f"{name}: {WORDS}"}
        await self.ask("events", {"events": [event]})
        self.events.append(name)
        return name

    async def round(self) -> None:
        """All that an agent does around a call."""
        await self.append()
        made = await self.ask("context", {"format": "openai"}, key=f"context-{next(self._numbers)}")
        self.calls[made["call_id"]] = made["sha256"]
        await self.append("assistant.message")
        tokens = next(self._numbers)
        usage = {"usage": {"input_tokens": tokens, "output_tokens": 10}}
        await self.ask(f"calls/{made['call_id']}/outcome", usage, key=f"outcome-{tokens}")
        self.reported[made["call_id"]] = tokens

    async def rounds(self, number: int) -> None:
        """So many of them."""
        for _ in range(number):
            await self.round()

    async def live(self, stop: asyncio.Event, pause: float = MODEL_SECONDS) -> None:
        """Round after round, until told to stop."""
        while not stop.is_set():
            await self.round()
            await asyncio.sleep(pause)

    async def ask(self, what: str, body: Json, key: str | None = None) -> Json:
        """The answer to a request, repeated until it is done."""
        headers = {} if key is None else {"Idempotency-Key": key}
        while True:
            try:
                answer = await self._http.post(f"/v1/sessions/{self.session}/{what}", json=body, headers=headers)
            except httpx.TransportError:
                self.refused.set()
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            if answer.is_success:
                found: Json = answer.json()
                return found
            assert (answer.status_code, answer.json()["type"]) == (503, "/problems/store-unavailable"), answer.text
            assert int(answer.headers["retry-after"]) >= 1
            self.refused.set()
            await asyncio.sleep(PAUSE_SECONDS)


@asynccontextmanager
async def asking(url: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client with patience."""
    async with httpx.AsyncClient(base_url=url, timeout=120, verify=False) as http:
        yield http


async def logged(http: httpx.AsyncClient, session: str) -> list[str]:
    """The ids of a session's events, whose seqs have no gap."""
    answer = await http.get(f"/v1/sessions/{session}/events", params={"limit": 1_000})
    assert answer.status_code == 200, answer.text
    page = answer.json()
    assert page["next_cursor"] is None
    assert [event["seq"] for event in page["items"]] == list(range(1, len(page["items"]) + 1))
    return [event["id"] for event in page["items"]]


async def check_calls(
    http: httpx.AsyncClient, session: str, calls: dict[str, str], reported: dict[str, int]
) -> list[str]:
    """Render each call again to the bytes of then, with what was reported of it; return all recorded calls' ids."""
    for call_id, sha256 in calls.items():
        again = await http.get(f"/v1/sessions/{session}/calls/{call_id}/context")
        assert (again.status_code, again.json()["sha256"]) == (200, sha256), again.text
    answer = await http.get(f"/v1/sessions/{session}/calls", params={"limit": 1_000})
    assert answer.status_code == 200, answer.text
    items = {item["call_id"]: item for item in answer.json()["items"]}
    assert {call_id: items[call_id]["input_tokens"] for call_id in reported} == reported
    return list(items)
