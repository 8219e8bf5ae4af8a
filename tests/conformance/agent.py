"""An agent over real HTTP."""

import json
from collections.abc import Awaitable, Callable, Sequence
from itertools import chain
from typing import Any

import httpx
import pytest

Json = dict[str, Any]
WAIT_MS = 60_000
BY_TURN = pytest.mark.parametrize(
    "by_turn", [pytest.param(True, id="turns", marks=pytest.mark.slow), pytest.param(False, id="bulk")]
)
"""Runs a test for both ways to post a session; see `batches`."""


class Agent:
    """A session with one policy; every method makes one request."""

    def __init__(self, http: httpx.AsyncClient, name: str = "s", **asks: Any) -> None:
        self._http, self._path, self._asks = http, f"/v1/sessions/{name}", asks
        self._calls = 0

    @classmethod
    async def begin(cls, http: httpx.AsyncClient, policy: Any, name: str = "s", **asks: Any) -> "Agent":
        """Create a session; `asks` go with every context request."""
        answer = await http.put(f"/v1/sessions/{name}", json={"policy": policy})
        answer.raise_for_status()
        return cls(http, name, **asks)

    async def post(self, *events: Json) -> Json:
        """Append events and return the response."""
        answer = await self._http.post(f"{self._path}/events", json={"events": list(events)})
        answer.raise_for_status()
        found: Json = answer.json()
        return found

    async def user(self, text: str = "go on", **more: Any) -> int:
        return int((await self.post({"type": "user.message", "content": text, **more}))["head"])

    async def assistant(self, text: str = "so be it", **more: Any) -> int:
        return int((await self.post({"type": "assistant.message", "content": text, **more}))["head"])

    async def calls(self, tool: str = "read", result: str | None = "found", arguments: Any = None) -> int:
        """Append a call and its result; return the result's seq, or the call's without a result."""
        self._calls += 1
        call: Json = {"type": "tool.call", "call_id": f"c{self._calls}", "tool": tool, "arguments": arguments or {}}
        events = [call]
        if result is not None:
            events.append({"type": "tool.result", "call_id": f"c{self._calls}", "content": result})
        return int((await self.post(*events))["head"])

    async def context(self, status: int = 200, **asks: Any) -> Json:
        """Request a context and return the response."""
        answer = await self._http.post(f"{self._path}/context", json={**self._asks, **asks})
        assert answer.status_code == status, answer.text
        found: Json = answer.json()
        return found

    async def log(self) -> list[Json]:
        """Return all events of the log."""
        found: list[Json] = []
        while True:
            after = found[-1]["seq"] if found else 0
            answer = await self._http.get(f"{self._path}/events", params={"after": after, "limit": 1000})
            answer.raise_for_status()
            page = answer.json()["items"]
            if not page:
                return found
            found += page


async def until_folded(agent: Agent, append: Callable[[int], Awaitable[object]], most: int = 200) -> tuple[Json, Json]:
    """Return the last context without a summary and the first with one, checking that nothing was dropped.

    `append` adds the events before each call, by its number. Contexts are requested with `wait_ms`.
    """
    before: Json = {}
    for number in range(most):
        await append(number)
        context = await agent.context(wait_ms=WAIT_MS)
        assert not evicted_seqs(context, "dropped")
        if context["summaries"]:
            return before, context
        assert context["evictions"] == []
        before = context
    raise AssertionError("nothing was ever summarized")


def batches(turns: Sequence[Sequence[Json]], by_turn: bool) -> list[list[Json]]:
    """Return the events of turns as they are posted: one batch per turn, or a single batch."""
    return [list(turn) for turn in turns] if by_turn else [list(chain.from_iterable(turns))]


def request_text(context: Json) -> str:
    """Return the request of a context as JSON text."""
    return json.dumps(context["request"], ensure_ascii=False)


def evicted_seqs(context: Json, disposition: str) -> set[int]:
    """Return the seqs of a context's events with this disposition."""
    runs = [row for row in context["evictions"] if row["disposition"] == disposition]
    return {seq for row in runs for seq in range(row["from_seq"], row["to_seq"] + 1)}
