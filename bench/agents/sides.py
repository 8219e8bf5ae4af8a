"""The two sides that are compared, ours and the floor: how to start, inspect and call each."""

import asyncio
import gc
import json
import multiprocessing
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from multiprocessing.context import ForkServerContext, SpawnContext
from pathlib import Path
from typing import Any, Final, Protocol

import asyncpg
import psutil
import uvicorn
from sqlalchemy.engine import make_url

from app.core.policy.policy import DOCUMENTS
from app.runtime.serve import GC_THRESHOLDS, KEEP_ALIVE_SECONDS
from app.runtime.settings import Settings
from app.store.embedded import EmbeddedPostgres
from bench.agents.traffic import MODELS, Life, body_of
from bench.http import Http, Spread
from bench.quality.servers import IDLE_SECONDS, Stack
from bench.speed import floor
from bench.speed.servers import dsn
from palimpsest_tools.server import free_port

READY_SECONDS: Final = 60
POLL_SECONDS: Final = 0.05
_spawn: Final = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True)
class ContextParameters:
    """Parameters of a context request; `floor_tokens` is the size requested from the floor instead."""

    form: str = "anthropic"
    window: int = 60_000
    policy: str = "default"
    floor_tokens: int = 60_000

    @property
    def model(self) -> str:
        """A model of the format's provider."""
        return MODELS[self.form]

    def in_window(self, window: int) -> "ContextParameters":
        """Return a copy with another window."""
        return replace(self, window=window, floor_tokens=self.floor_tokens * window // self.window)


class Side(Protocol):
    """A server under test."""

    name: str
    url: str
    ask: ContextParameters
    port: int

    @property
    def ports(self) -> Sequence[int]:
        """Ports of all API processes, `port` first."""

    async def restart(self) -> None:
        """Replace the API process by a new one, whose memory is empty."""

    async def idle(self) -> None:
        """Return when no background work is left."""

    async def jobs(self) -> float:
        """Return the number of jobs of the worker that wait or run."""

    async def open(self, http: Http | Spread, session: str, life: Life) -> None:
        """Create a session."""

    async def append(self, http: Http | Spread, session: str, messages: Sequence[str]) -> None:
        """Append messages."""

    async def context(self, http: Http | Spread, session: str) -> bytes:
        """Return the body of the context response."""

    async def erase(self, http: Http | Spread, session: str) -> None:
        """Erase a session and its queued work."""

    def suspend_worker(self) -> None:
        """Suspend the worker."""

    def resume_worker(self) -> None:
        """Resume the worker."""

    async def tokens(self) -> int:
        """Return the tokens of all logs, as this side counts them."""

    def pids(self) -> Mapping[str, int]:
        """Return the pids by role; the roles of API processes begin with `api`."""


@dataclass(slots=True)
class Ours:
    """API and worker, or `serve`, on a database of their own."""

    name: str
    url: str
    stack: Stack
    ask: ContextParameters
    together: bool = False
    extra_stacks: Sequence[Stack] = ()
    """Further API processes on the same database."""
    port: int = field(init=False)

    def __post_init__(self) -> None:
        self.port = self.stack.port

    @property
    def ports(self) -> Sequence[int]:
        return [stack.port for stack in (self.stack, *self.extra_stacks)]

    async def restart(self) -> None:
        await self.stack.restart_api()

    async def stop(self) -> None:
        """Stop all processes."""
        for one in (*self.extra_stacks, self.stack):
            await one.stop()

    async def idle(self) -> None:
        await self.stack.idle()

    async def jobs(self) -> float:
        return await self.stack.jobs()

    async def open(self, http: Http | Spread, session: str, life: Life) -> None:
        policy: Mapping[str, Any] | str = self.ask.policy
        if policy in DOCUMENTS and policy != "default":
            policy = {**DOCUMENTS[self.ask.policy], "window_tokens": self.ask.window}
        given = {"model": self.ask.model, "policy": policy}
        await http.request("PUT", f"/v1/sessions/{session}", json.dumps(given).encode())
        if life.head:
            await http.request(
                "POST", f"/v1/sessions/{session}/events", f'{{"events":[{",".join(life.head)}]}}'.encode()
            )

    async def append(self, http: Http | Spread, session: str, messages: Sequence[str]) -> None:
        await http.request("POST", f"/v1/sessions/{session}/messages", body_of(self.ask.form, messages))

    async def context(self, http: Http | Spread, session: str) -> bytes:
        asked = f"format={self.ask.form}&max_tokens={self.ask.window}"
        return await http.request("GET", f"/v1/sessions/{session}/context?{asked}")

    async def erase(self, http: Http | Spread, session: str) -> None:
        await http.request("DELETE", f"/v1/sessions/{session}")

    def suspend_worker(self) -> None:
        psutil.Process(self.stack.pid("worker")).suspend()

    def resume_worker(self) -> None:
        psutil.Process(self.stack.pid("worker")).resume()

    async def tokens(self) -> int:
        return await number(self.url, "SELECT coalesce(sum(tokens), 0)::bigint FROM sessions")

    def pids(self) -> Mapping[str, int]:
        if self.together:
            return {"api": self.stack.pid("serve")}
        further = {f"api {number}": one.pid("api") for number, one in enumerate(self.extra_stacks, 2)}
        return {"api": self.stack.pid("api"), **further, "worker": self.stack.pid("worker")}


@dataclass(slots=True)
class WholeListClient(Ours):
    """Our server for clients that append nothing and send their whole conversation with every call."""

    _said: dict[str, list[str]] = field(default_factory=dict)

    async def append(self, http: Http | Spread, session: str, messages: Sequence[str]) -> None:
        self._said.setdefault(session, []).extend(messages)

    async def context(self, http: Http | Spread, session: str) -> bytes:
        asked = f'"format":"{self.ask.form}","max_tokens":{self.ask.window}'
        body = f'{{{asked},"messages":[{",".join(self._said[session])}]}}'.encode()
        return await http.request("POST", f"/v1/sessions/{session}/context", body)


@dataclass(slots=True)
class Floor:
    """The minimal server for the same traffic, in a process of its own (`bench/speed/floor.py`).

    `spawning` is its multiprocessing context. With `summaries` it also queues jobs for its minimal worker.
    """

    url: str
    ask: ContextParameters
    name: str = "floor"
    port: int = field(default_factory=free_port)
    summaries: bool = False
    spawning: SpawnContext | ForkServerContext = _spawn
    _process: multiprocessing.process.BaseProcess | None = None

    @property
    def ports(self) -> Sequence[int]:
        return [self.port]

    async def start(self) -> None:
        """Start the process; return when it accepts connections."""
        self._process = self.spawning.Process(target=_serve_floor, args=(self.url, self.port), daemon=True)
        self._process.start()
        async with asyncio.timeout(READY_SECONDS):
            while True:
                try:
                    (await Http.connect(self.port)).close()
                    return
                except OSError:
                    if not self._process.is_alive():
                        raise RuntimeError("the floor ended while starting") from None
                    await asyncio.sleep(POLL_SECONDS)

    @asynccontextmanager
    async def summarizing(self) -> AsyncIterator[None]:
        """Run the minimal worker while the block lasts."""
        await execute(self.url, floor.SUMMARIES_TABLE)
        worker = self.spawning.Process(target=_summarize, args=(self.url,), daemon=True)
        worker.start()
        self.summaries = True
        yield
        self.summaries = False
        worker.terminate()
        worker.join()

    def stop(self) -> None:
        """Stop the process."""
        if self._process is not None:
            self._process.terminate()
            self._process.join()

    async def restart(self) -> None:
        await asyncio.to_thread(self.stop)
        await self.start()

    async def idle(self) -> None:
        async with asyncio.timeout(IDLE_SECONDS):
            while await self.jobs():  # noqa: ASYNC110 - in Postgres
                await asyncio.sleep(POLL_SECONDS)

    async def jobs(self) -> float:
        return await number(self.url, "SELECT count(*) FROM floor_jobs") if self.summaries else 0

    async def open(self, http: Http | Spread, session: str, life: Life) -> None:
        if life.head:
            await self.append(http, session, life.head)

    async def append(self, http: Http | Spread, session: str, messages: Sequence[str]) -> None:
        wish = "?summaries=true" if self.summaries else ""
        await http.request("POST", f"/messages/{session}{wish}", body_of(self.ask.form, messages))

    async def context(self, http: Http | Spread, session: str) -> bytes:
        return await http.request("GET", f"/newest/{session}?max_tokens={self.ask.floor_tokens}")

    async def erase(self, http: Http | Spread, session: str) -> None:
        return

    def suspend_worker(self) -> None:
        return

    def resume_worker(self) -> None:
        return

    async def tokens(self) -> int:
        return 0

    def pids(self) -> Mapping[str, int]:
        assert self._process is not None
        assert self._process.pid is not None
        return {"api": self._process.pid}


def _serve_floor(url: str, port: int) -> None:
    """Serve the floor with the settings of `palimpsest api`: event loop, parser, pool size, collector thresholds."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    uvicorn.run(
        floor.for_agents(dsn(url), Settings().pool_size),
        host="127.0.0.1",
        port=port,
        loop="uvloop",
        http="httptools",
        ws="none",
        log_config=None,
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
    )


def _summarize(url: str) -> None:
    asyncio.run(floor.summarize(dsn(url)))


async def database(postgres: EmbeddedPostgres, name: str) -> str:
    """Create a database; return its URL."""
    await execute(postgres.url, f"CREATE DATABASE {name}")
    return make_url(postgres.url).set(database=name).render_as_string(hide_password=False)


async def execute(url: str, statements: str) -> None:
    """Run statements in a database."""
    raw = await asyncpg.connect(dsn(url))
    try:
        await raw.execute(statements)
    finally:
        await raw.close()


async def number(url: str, statement: str) -> int:
    """Return the number that a statement selects."""
    raw = await asyncpg.connect(dsn(url))
    try:
        return int(await raw.fetchval(statement))
    finally:
        await raw.close()


async def a_floor(postgres: EmbeddedPostgres, ask: ContextParameters) -> Floor:
    """Start the floor on a new database."""
    url = await database(postgres, "floor")
    await execute(url, floor.MESSAGES_TABLE)
    made = Floor(url, ask)
    await made.start()
    return made


async def ours(
    postgres: EmbeddedPostgres,
    folder: Path,
    ask: ContextParameters,
    name: str = "ours",
    *,
    together: bool = False,
    checkout: Path | None = None,
    processes: int = 1,
) -> Ours:
    """Start a server of ours on a new database, with `processes` API processes and one worker."""
    roles = ("serve",) if together else ("worker", "api")
    url = await database(postgres, name.replace("-", "_"))
    stack = Stack(url, folder, roles, checkout)
    await stack.migrate()
    await stack.start()
    further = [Stack(url, folder, ("api",)) for _ in range(1, processes)]
    for one in further:
        await one.start()
    return Ours(name, url, stack, ask, together, further)


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process and of all its descendants, ended ones included."""
    try:
        process = psutil.Process(pid)
        every = [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0.0
    total = 0.0
    for one in every:
        try:
            times = one.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def memory_mb(pid: int) -> float:
    """Return the resident memory of a process in MB of 2^20 bytes, without its children."""
    return float(psutil.Process(pid).memory_info().rss / 2**20)


def postmaster(postgres: EmbeddedPostgres) -> int:
    """Return the pid of the postmaster."""
    return int((postgres.folder / "postgres" / "postmaster.pid").read_text(encoding="utf-8").split("\n", 1)[0])


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))
