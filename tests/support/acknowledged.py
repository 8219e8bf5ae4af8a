"""Agents that record every acknowledged request, and checks that the server kept each exactly once.

A request refused because the database is away is repeated unchanged until it succeeds.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, Final

import httpx

PAUSE_SECONDS: Final = 0.05
"""The delay between two tries."""
MODEL_SECONDS: Final = 0.2
"""The simulated response time of an agent's model."""
POLICY: Final = {"window_tokens": 6_000, "reserve_tokens": 0}
WORDS: Final = "The build of the parser takes the configuration from its own folder and writes the result to disk. " * 8

Json = dict[str, Any]


class Agent:
    """An agent in a session of its own that appends, requests a context, appends the reply and reports usage."""

    def __init__(self, http: httpx.AsyncClient, session: str) -> None:
        self._http, self.session = http, session
        self._numbers = count(1)
        self.events: list[str] = []
        """The ids of the acknowledged events, in log order."""
        self.calls: dict[str, str] = {}
        """The SHA-256 of each acknowledged context, by call id."""
        self.reported: dict[str, int] = {}
        """The reported input tokens of each call, by call id."""
        self.refused = asyncio.Event()
        """Set once a request was refused."""

    async def begin(self) -> None:
        """Create the session."""
        answer = await self._http.put(f"/v1/sessions/{self.session}", json={"policy": POLICY})
        assert answer.status_code == 201, answer.text

    async def append(self, kind: str = "user.message") -> str:
        """Append an event; return its id."""
        name = f"{self.session}-{next(self._numbers)}"
        event = {"type": kind, "id": name, "content": f"{name}: {WORDS}"}
        await self.ask("events", {"events": [event]})
        self.events.append(name)
        return name

    async def take_turn(self) -> None:
        """Append a user message, request a context, append the reply and report its usage."""
        await self.append()
        made = await self.ask("context", {"format": "openai"}, key=f"context-{next(self._numbers)}")
        self.calls[made["call_id"]] = made["sha256"]
        await self.append("assistant.message")
        tokens = next(self._numbers)
        usage = {"usage": {"input_tokens": tokens, "output_tokens": 10}}
        await self.ask(f"calls/{made['call_id']}/outcome", usage, key=f"outcome-{tokens}")
        self.reported[made["call_id"]] = tokens

    async def take_turns(self, number: int) -> None:
        for _ in range(number):
            await self.take_turn()

    async def live(self, stop: asyncio.Event, pause: float = MODEL_SECONDS) -> None:
        """Take turns until `stop` is set."""
        while not stop.is_set():
            await self.take_turn()
            await asyncio.sleep(pause)

    async def ask(self, what: str, body: Json, key: str | None = None) -> Json:
        """Send a request, repeating it until it succeeds, and return its response."""
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
async def patient_client(url: str) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client with a long timeout."""
    async with httpx.AsyncClient(base_url=url, timeout=120, verify=False) as http:
        yield http


async def event_ids(http: httpx.AsyncClient, session: str) -> list[str]:
    """Return the ids of a session's events, checking that their seqs have no gap."""
    answer = await http.get(f"/v1/sessions/{session}/events", params={"limit": 1_000})
    assert answer.status_code == 200, answer.text
    page = answer.json()
    assert page["next_cursor"] is None
    assert [event["seq"] for event in page["items"]] == list(range(1, len(page["items"]) + 1))
    return [event["id"] for event in page["items"]]


async def check_calls(
    http: httpx.AsyncClient, session: str, calls: dict[str, str], reported: dict[str, int]
) -> list[str]:
    """Check that each call renders to its original bytes and has its reported tokens; return all recorded call ids."""
    for call_id, sha256 in calls.items():
        again = await http.get(f"/v1/sessions/{session}/calls/{call_id}/context")
        assert (again.status_code, again.json()["sha256"]) == (200, sha256), again.text
    answer = await http.get(f"/v1/sessions/{session}/calls", params={"limit": 1_000})
    assert answer.status_code == 200, answer.text
    items = {item["call_id"]: item for item in answer.json()["items"]}
    assert {call_id: items[call_id]["input_tokens"] for call_id in reported} == reported
    return list(items)
