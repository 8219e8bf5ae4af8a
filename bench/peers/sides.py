"""The sides that are compared: ours over HTTP, and peers, each in a process and an environment of its own."""

import asyncio
import json
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from app.store.embedded import EmbeddedPostgres
from app.version import VERSION
from bench.agents.sides import ContextParameters, Ours, database, ours
from bench.agents.steps import InOneRequest
from bench.agents.traffic import BULK_EVENTS, Life
from bench.http import Http
from bench.peers.conversation import message

ROOT: Final = Path(__file__).parents[2]
ENVIRONMENTS: Final = Path(__file__).parent / ".venv"
WINDOW_TOKENS: Final = 9_070
"""A target of 8,003, which is the budget, after a tenth for the reserve and the estimator's margin."""
FILL_SECONDS: Final = 300
"""Time limit for filling a peer to a size; a peer that exceeds it is dropped."""
SETTLING_CALLS, SETTLE_SECONDS = 3, 120
"""Contexts that enqueue our worker's jobs once a session is filled, and the time limit of those jobs."""
SESSION: Final = "one"


class Side(Protocol):
    """A store that holds one session."""

    name: str
    versions: Mapping[str, str]

    @property
    def url(self) -> str:
        """URL of its database."""

    async def fill(self, events: int) -> None:
        """Fill the session up to `events` events.

        Raises TimeoutError where that takes too long; the side cannot be used afterwards.
        """

    async def append(self) -> float:
        """Append the next event; return the seconds it took."""

    async def context(self) -> tuple[float, int]:
        """Request a context; return the seconds it took, and the number of its messages."""

    async def step(self) -> float | None:
        """Append the next event and request a context, both in one call; return the seconds, None if it has none."""


@dataclass(slots=True)
class Served:
    """Our server. Its worker runs while sessions are filled and in our own turns, and is suspended in others'.

    `stepping` is the same server for clients that append with the request for a context.
    """

    side: Ours
    stepping: InOneRequest
    http: Http
    name: str = "ours, over HTTP"
    versions: Mapping[str, str] = field(default_factory=lambda: {"palimpsest": VERSION})
    held: int = 0

    @property
    def url(self) -> str:
        return self.side.url

    async def fill(self, events: int) -> None:
        self.side.resume_worker()
        if not self.held:
            await self.side.open(self.http, SESSION, Life(SESSION, (), ()))
        while self.held < events:
            await self._post(min(BULK_EVENTS, events - self.held))
        with suppress(TimeoutError):  # the worker continues in our turns
            async with asyncio.timeout(SETTLE_SECONDS):
                for _ in range(SETTLING_CALLS):
                    await self.side.context(self.http, SESSION)
                    await self.side.idle()
        self.side.suspend_worker()

    async def append(self) -> float:
        self.side.resume_worker()
        return await self._post(1)

    async def context(self) -> tuple[float, int]:
        self.side.resume_worker()
        begun = time.perf_counter()
        answer = await self.side.context(self.http, SESSION)
        seconds = time.perf_counter() - begun
        self.side.suspend_worker()
        return seconds, len(json.loads(answer)["request"]["messages"])

    async def step(self) -> float:
        self.side.resume_worker()
        await self.stepping.append(self.http, SESSION, self._next(1))
        begun = time.perf_counter()
        await self.stepping.context(self.http, SESSION)
        seconds = time.perf_counter() - begun
        self.side.suspend_worker()
        return seconds

    async def restarted(self) -> float:
        """Return the seconds of the first context of a new API process."""
        await self.side.restart()
        return (await self.context())[0]

    async def _post(self, events: int) -> float:
        messages = self._next(events)
        begun = time.perf_counter()
        await self.side.append(self.http, SESSION, messages)
        return time.perf_counter() - begun

    def _next(self, events: int) -> list[str]:
        self.held += events
        return [json.dumps(message(number)) for number in range(self.held - events, self.held)]


@dataclass(slots=True)
class InProcess:
    """A peer, timed within its own process, so that the pipe to it and back is not counted."""

    name: str
    url: str
    process: Process
    versions: Mapping[str, str]
    held: int = 0

    async def fill(self, events: int) -> None:
        if self.held >= events:
            return
        try:
            async with asyncio.timeout(FILL_SECONDS):
                await self._ask("fill", self.held, events)
        except TimeoutError:
            self.process.kill()
            raise
        self.held = events

    async def append(self) -> float:
        self.held += 1
        seconds, _ = await self._ask("append", self.held - 1)
        return seconds

    async def context(self) -> tuple[float, int]:
        return await self._ask("context")

    async def step(self) -> None:
        return None

    async def _ask(self, *command: str | int) -> tuple[float, int]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command).encode() + b"\n")
        answer = await _line(self.process, self.name)
        return answer["seconds"], answer["messages"]


async def _line(process: Process, name: str) -> dict[str, Any]:
    assert process.stdout is not None
    line = await process.stdout.readline()
    if not line:
        raise RuntimeError(f"{name} ended; what it said is above")
    found: dict[str, Any] = json.loads(line)
    return found


@dataclass(frozen=True, slots=True)
class Peer:
    """The environment of a peer, its module here, and the module's arguments."""

    name: str
    environment: str
    module: str
    arguments: Sequence[str] = ()


PEERS: Final = (
    Peer("OpenAI Agents SDK", "openai-agents", "openai_agents"),
    Peer("Google ADK", "google-adk", "google_adk"),
    Peer("LangGraph", "langgraph", "langgraph"),
    Peer("LangGraph, DeltaChannel", "langgraph", "langgraph", ("delta",)),
)


@asynccontextmanager
async def started(postgres: EmbeddedPostgres, folder: Path) -> AsyncIterator[tuple[Served, list[InProcess]]]:
    """Start all sides, each on a database of its own, and stop them at the end."""
    async with AsyncExitStack() as stack:
        served = await ours(postgres, folder, ContextParameters("openai", WINDOW_TOKENS))
        stack.push_async_callback(served.stack.stop)
        stack.callback(served.resume_worker)  # a suspended worker would not receive its stop signal
        peers = []
        for number, peer in enumerate(PEERS):
            url = await database(postgres, f"peer_{number}")
            process = await _process(peer, url)
            stack.push_async_callback(_end, process)
            peers.append(InProcess(peer.name, url, process, await _line(process, peer.name)))
        stepping = InOneRequest(served.name, served.url, served.stack, served.ask)
        yield Served(served, stepping, await Http.connect(served.port)), peers


async def _process(peer: Peer, url: str) -> Process:
    python = ENVIRONMENTS / peer.environment / "bin" / "python"
    if not python.exists():
        raise FileNotFoundError(f"{peer.name} has no environment; `make bench NAME=peers` makes it")
    return await asyncio.create_subprocess_exec(
        *(str(python), "-m", f"bench.peers.{peer.module}", url, *peer.arguments),
        stdin=PIPE,
        stdout=PIPE,
        stderr=sys.stderr,
        cwd=ROOT,
        start_new_session=True,  # Ctrl-C stops the benchmark, which then stops its processes
    )


async def _end(process: Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()
