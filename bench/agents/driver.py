"""Agents: each appends what happened since its last call, requests a context, and continues when it has it."""

import asyncio
import gc
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Final

from bench.agents.lag import Prober
from bench.agents.sides import Side, cpu_seconds
from bench.agents.traffic import Life
from bench.http import Http, Spread

NO_PIDS: Final[Mapping[str, int]] = {}
STRIDE_STEPS: Final = 8
"""Steps that are posted together while an agent is advanced to its starting point."""
GOLDEN: Final = 0.618034
TOKENS: Final = re.compile(rb'"tokens":\{"estimate":(\d+),"target":(\d+)')
EPOCH: Final = re.compile(rb'"epoch":(\d+)')


class BadContext(Exception):
    """A context that is larger than its target, or does not state its size."""


def even_start(number: int) -> float:
    """Return where in its life an agent starts, as a share: 0 for the first; the others are spread evenly."""
    return number * GOLDEN % 1


@dataclass(slots=True)
class Times:
    """Measurements taken while agents run: seconds of each request, and bytes."""

    contexts: list[float] = field(default_factory=list)
    appends: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    """An append and the context after it."""
    openings: list[float] = field(default_factory=list)
    """Those of `contexts` that opened an epoch."""
    context_bytes: int = 0
    posted_bytes: int = 0


@dataclass(slots=True)
class Agent:
    """An agent that replays recorded sessions (its lives) in turn, endlessly, each in a new session of the server."""

    side: Side
    http: Http | Spread
    name: str
    lives: Sequence[Life]
    life: int = 0
    step: int = 0
    epoch: int | None = None
    born: int = 0

    @property
    def session(self) -> str:
        """The external id of the running session."""
        return f"{self.name}.{self.born}"

    async def advance_to(self, share: float) -> None:
        """Advance to a share of the life, several steps at a time."""
        await self.side.open(self.http, self.session, self.lives[self.life])
        until = int(len(self.lives[self.life].steps) * share)
        while self.step < until:
            await self.advance(min(STRIDE_STEPS, until - self.step), Times())

    async def make_calls(self, calls: int, times: Times) -> None:
        """Make `calls` calls, beginning the next life where one ends."""
        for _ in range(calls):
            if self.step == len(self.lives[self.life].steps):
                self.life = (self.life + 1) % len(self.lives)
                self.born, self.step, self.epoch = self.born + 1, 0, None
                await self.side.open(self.http, self.session, self.lives[self.life])
            await self.advance(1, times)

    async def advance(self, steps: int, times: Times) -> None:
        """Append the next `steps` steps together, and request the context after them."""
        some = self.lives[self.life].steps[self.step : self.step + steps]
        messages = [text for step in some for text in step.messages]
        self.step += len(some)
        begun = time.perf_counter()
        await self.side.append(self.http, self.session, messages)
        times.appends.append(time.perf_counter() - begun)
        times.posted_bytes += sum(map(len, messages))
        await self.request_context(times)
        times.steps.append(time.perf_counter() - begun)

    async def request_context(self, times: Times) -> None:
        """Request the current context."""
        begun = time.perf_counter()
        answer = await self.side.context(self.http, self.session)
        times.contexts.append(time.perf_counter() - begun)
        self._check(answer, times)

    def _check(self, answer: bytes, times: Times) -> None:
        """Count a response's bytes, and for ours check its estimate against the target and note a new epoch."""
        times.context_bytes += len(answer)
        if self.side.name == "floor":
            return
        at = answer.rfind(b'"tokens":{"estimate":')
        found, epoch = TOKENS.match(answer, max(at, 0)), EPOCH.search(answer, 0, 4_000)
        if found is None or epoch is None:
            raise BadContext(f"{self.session}: the answer does not say its size: {answer[:300]!r}")
        if int(found[1]) > int(found[2]):
            raise BadContext(f"{self.session}: {int(found[1])} tokens, the target is {int(found[2])}")
        if self.epoch not in (None, int(epoch[1])):
            times.openings.append(times.contexts[-1])
        self.epoch = int(epoch[1])


async def a_fleet(
    side: Side, lives: Sequence[Life], agents: int, name: str, start: Callable[[int], float] = even_start
) -> list[Agent]:
    """Return `agents` agents, each advanced to a share of its life."""
    fleet = []
    for number in range(agents):
        http = await Spread.connect(side.ports, number)
        fleet.append(Agent(side, http, f"{name}-{number}", lives, number % len(lives)))
    await asyncio.gather(*[agent.advance_to(start(number)) for number, agent in enumerate(fleet)])
    return fleet


@dataclass(frozen=True, slots=True)
class Slice:
    """Measurements of one side in one round. Times are in ms; CPU is in seconds, by role."""

    calls: int
    seconds: float
    context: tuple[float, float, float]
    append: tuple[float, float, float]
    step: tuple[float, float, float]
    opening: float | None
    openings: int
    cpu: Mapping[str, float]
    client_cpu: float
    lag: float | None
    context_kb: float
    posted_kb: float
    commits: float | None = None
    """Transactions that write in a step, where they were counted."""

    @property
    def per_second(self) -> float:
        """Contexts a second of all agents together."""
        return self.calls / self.seconds


async def target_of(side: Side, life: Life) -> int:
    """Return the target of a context on a side of ours."""
    http = await Http.connect(side.port)
    await side.open(http, "target", life)
    await side.append(http, "target", life.steps[0].messages)
    found = TOKENS.search(await side.context(http, "target"))
    http.close()
    if found is None:
        raise BadContext("the answer does not say its size")
    return int(found[2])


def spread(seconds: Sequence[float]) -> tuple[float, float, float]:
    """Return median, 99th percentile and maximum, in ms."""
    ordered = sorted(seconds)
    return statistics.median(ordered) * 1e3, ordered[int(len(ordered) * 0.99)] * 1e3, ordered[-1] * 1e3


async def a_slice(
    fleet: Sequence[Agent], calls: int, prober: Prober | None = None, others: Mapping[str, int] = NO_PIDS
) -> Slice:
    """Let each agent make `calls` calls. `others` are further pids by role whose CPU is measured."""
    side = fleet[0].side
    times = Times()
    pids = {**side.pids(), **others}
    asking: AbstractContextManager[list[float]] = prober.probing(side.port) if prober else nullcontext([])
    with _without_gc(), asking as lag:
        before = {role: cpu_seconds(pid) for role, pid in pids.items()}
        client, begun = time.process_time(), time.perf_counter()
        await asyncio.gather(*[agent.make_calls(calls, times) for agent in fleet])
        seconds, client = time.perf_counter() - begun, time.process_time() - client
        cpu = {role: cpu_seconds(pid) - before[role] for role, pid in pids.items()}
    made = len(times.contexts)
    return Slice(
        calls=made,
        seconds=seconds,
        context=spread(times.contexts),
        append=spread(times.appends),
        step=spread(times.steps),
        opening=spread(times.openings)[0] if times.openings else None,
        openings=len(times.openings),
        cpu=cpu,
        client_cpu=client,
        lag=spread(lag)[1] if lag else None,
        context_kb=times.context_bytes / made / 1024,
        posted_kb=times.posted_bytes / 1024,
    )


@contextmanager
def _without_gc() -> Iterator[None]:
    """Disable the garbage collector, whose pauses would count as the servers' time."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
