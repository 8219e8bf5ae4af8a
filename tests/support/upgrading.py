"""Agents that keep working while their servers are replaced, and record what was acknowledged."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

Json = dict[str, Any]
SECONDS_MAX: Final = 240
MODEL: Final = "gpt-5"
POLICY: Final = {
    "window_tokens": 12_000,
    "reserve_tokens": 0,
    "retention": {"keep_last": None, "superseded": False, "arguments": False},
}
TALE: Final = "The build of the parser takes its configuration from a folder of its own and writes to disk. " * 6


@dataclass
class Site:
    """The servers behind a round-robin load balancer; a request that fails is an error."""

    servers: list[httpx.AsyncClient] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    """The duration of each request; a test may clear it."""
    _turns: Iterator[int] = field(default_factory=itertools.count)

    async def ask(self, method: str, path: str, body: Json | None = None) -> Any:
        """Send a request to the next server and return its parsed response, which must be a success."""
        server = self.servers[next(self._turns) % len(self.servers)]
        began = time.perf_counter()
        answer = await server.request(method, path, json=body)
        self.seconds.append(time.perf_counter() - began)
        assert answer.is_success, (str(server.base_url), method, path, answer.status_code, answer.text)
        return answer.json() if answer.content else None


@dataclass
class Agent:
    """An agent with a session of its own; it keeps the acknowledged event ids by seq and each call's hash."""

    site: Site
    name: str
    acknowledged: dict[int, str] = field(default_factory=dict)
    calls: dict[str, str] = field(default_factory=dict)
    turns: int = 0

    @property
    def path(self) -> str:
        return f"/v1/sessions/{self.name}"

    async def begin(self) -> None:
        """Create the session."""
        await self.site.ask("PUT", self.path, {"policy": POLICY, "model": MODEL})

    async def take_turn(self) -> None:
        """Run a turn with a tool call: context, outcome, reply, recall, and a key created and deleted."""
        at, call_id = self.turns, f"c{self.turns}"
        called = {"type": "tool.call", "call_id": call_id, "tool": "read", "arguments": {"path": f"src/{at}.py"}}
        await self._append({"type": "user.message", "content": f"question {at} about the parser"}, called)
        await self._append({"type": "tool.result", "call_id": call_id, "content": f"{at}: {TALE}"})
        made = await self.site.ask("POST", f"{self.path}/context", {"format": "openai"})
        self.calls[made["call_id"]] = made["sha256"]
        usage = {"input_tokens": made["tokens"]["estimate"], "output_tokens": 5}
        await self.site.ask("POST", f"{self.path}/calls/{made['call_id']}/outcome", {"usage": usage, "latency_ms": 9})
        await self._append({"type": "assistant.message", "content": f"Answer {at}. {TALE}"})
        await self.site.ask("POST", f"{self.path}/recall", {"query": "parser configuration"})
        key = await self.site.ask("POST", "/v1/keys", {"name": f"{self.name}-{at}", "scopes": ["read"]})
        await self.site.ask("DELETE", f"/v1/keys/{key['id']}")
        self.turns += 1

    async def _append(self, *events: Json) -> None:
        named = [{**event, "id": f"{self.turns}-{event['type']}"} for event in events]
        receipt = await self.site.ask("POST", f"{self.path}/events", {"events": named})
        for event, taken in zip(named, receipt["events"], strict=True):
            self.acknowledged[taken["seq"]] = event["id"]


class Load:
    """Agents that take turns until stopped."""

    def __init__(self, site: Site, agents: int) -> None:
        self.site = site
        self.agents = [Agent(site, f"agent-{number}") for number in range(agents)]
        self._stop, self._moved = asyncio.Event(), asyncio.Condition()
        self._working: list[asyncio.Task[None]] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the agents until the block ends, then let each finish its turn."""
        self._working = [asyncio.create_task(self._live(agent)) for agent in self.agents]
        try:
            yield
        finally:
            self._stop.set()
            await asyncio.gather(*self._working)

    async def wait_for_turns(self, number: int) -> None:
        """Wait until each agent has finished `number` more turns; raise the error of an agent that failed."""
        wanted = [agent.turns + number for agent in self.agents]

        def done() -> bool:
            for task in self._working:
                if task.done():
                    task.result()
            return all(agent.turns >= least for agent, least in zip(self.agents, wanted, strict=True))

        async with asyncio.timeout(SECONDS_MAX), self._moved:
            await self._moved.wait_for(done)

    async def _live(self, agent: Agent) -> None:
        try:
            await agent.begin()
            while not self._stop.is_set():
                await agent.take_turn()
                async with self._moved:
                    self._moved.notify_all()
        finally:
            async with self._moved:
                self._moved.notify_all()
