"""The load's operations and their shares: sessions that begin, grow and end, and the requests made of them."""

import asyncio
import json
import re
import time
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import accumulate
from random import Random
from typing import Final

from bench.agents.driver import TOKENS
from bench.agents.sides import Ours, WholeListClient
from bench.agents.traffic import Life, body_of
from bench.http import Spread
from bench.soak.wire import Listener

SHARES: Final = {"call": 88, "recall": 4, "audit": 3, "fork": 2, "erase": 3}
"""Share of each operation, in percent."""
WHOLE_EVERY: Final = 5
"""One agent in this number sends its whole conversation with every call."""
STRIDE_CALLS: Final = 8
LISTEN_SECONDS: Final = 20.0
"""Time that a stream follows one session."""
FAILURES_SHOWN: Final = 10
_HEAD: Final = re.compile(rb'"head":(\d+)')
_CALL: Final = re.compile(rb'"call_id":"([0-9a-f-]+)"')
_QUERIES: Final = ("error in the build", "which file was changed", "test failed", "def main", "src/a.py")


class UnexpectedResponse(Exception):
    """A response with unexpected content."""


@dataclass(slots=True)
class Measurements:
    """Start and seconds of each request by kind, and failures."""

    times: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    failed: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    ticks: int = 0

    @asynccontextmanager
    async def timed(self, kind: str) -> AsyncIterator[None]:
        """Time a request that succeeds."""
        begun = time.perf_counter()
        yield
        self.add(kind, begun)

    def add(self, kind: str, since: float) -> None:
        """Record the time from `since` until now."""
        self.times.setdefault(kind, []).append((since, time.perf_counter() - since))

    def failure(self, kind: str, error: Exception | str) -> None:
        """Record a request that was refused or failed."""
        self.failed[kind] += 1
        if len(self.failures) < FAILURES_SHOWN:
            self.failures.append(f"{kind}: {error}")


@dataclass(slots=True)
class Written:
    """A session: the acknowledged part of its life, and the number of sessions forked from it."""

    name: str
    life: Life
    steps: int = 0
    head: int = 0
    forks: int = 0
    calls: int = 0
    chars: int = 0


@dataclass(slots=True)
class User:
    """An agent: it lives in one session after the other, and makes all its requests of the current one."""

    name: str
    side: Ours
    http: Spread
    lives: Sequence[Life]
    seen: Measurements
    chance: Random
    life: int = 0
    born: int = 0
    now: Written | None = None
    call_id: str = ""

    @property
    def kind(self) -> str:
        """Kind of its context requests in the results."""
        return "whole list" if isinstance(self.side, WholeListClient) else "context"

    async def begin(self, until: int = 0) -> None:
        """Begin a session and advance it to a step of its life, several calls at a time."""
        self.born += 1
        life = self.lives[self.life]
        self.life = (self.life + 1) % len(self.lives)
        written = Written(f"{self.name}.{self.born}", life, head=len(life.head))
        await self.side.open(self.http, written.name, life)
        self.now = written
        while written.steps < until:
            await self.call(min(STRIDE_CALLS, until - written.steps))

    async def begin_at(self, life: int, step: int) -> None:
        """Begin the first session, at a step of a life."""
        self.life = life
        await self.begin(step)

    async def call(self, steps: int = 1) -> None:
        """Append what happened since the last call, request the context, and report the call's outcome."""
        written = self._written()
        steps_made = written.life.steps[written.steps : written.steps + steps]
        messages = [text for step in steps_made for text in step.messages]
        if isinstance(self.side, WholeListClient):
            await self.side.append(self.http, written.name, messages)
        else:
            async with self.seen.timed("append"):
                answer = await self.http.request(
                    "POST", f"/v1/sessions/{written.name}/messages", body_of(self.side.ask.form, messages)
                )
            written.head = _number(_HEAD, answer)
        async with self.seen.timed(self.kind):
            answer = await self.side.context(self.http, written.name)
        written.head = _number(_HEAD, answer)
        written.steps += len(steps_made)
        written.chars += sum(map(len, messages))
        written.calls += 1
        tokens, call = TOKENS.search(answer), _CALL.search(answer)
        if tokens is None or call is None or int(tokens[1]) > int(tokens[2]):
            raise UnexpectedResponse(f"{written.name}: a context over its target, or without one: {answer[:200]!r}")
        self.call_id = call[1].decode()
        usage = json.dumps({"usage": {"input_tokens": int(tokens[1]), "output_tokens": 100}}).encode()
        async with self.seen.timed("outcome"):
            await self.http.request("POST", f"/v1/sessions/{written.name}/calls/{self.call_id}/outcome", usage)

    async def recall(self) -> None:
        """Search in the session's history."""
        async with self.seen.timed("recall"):
            await self.http.request(
                "POST",
                f"/v1/sessions/{self._written().name}/recall",
                json.dumps({"query": self.chance.choice(_QUERIES)}).encode(),
            )

    async def audit(self) -> None:
        """Request the disposition of every event in the last call, and the list of calls."""
        name = self._written().name
        async with self.seen.timed("audit"):
            await self.http.request("GET", f"/v1/sessions/{name}/calls/{self.call_id}")
            await self.http.request("GET", f"/v1/audit/calls?session={name}&limit=20")

    async def fork(self) -> None:
        """Fork the session, and request the fork's context."""
        written = self._written()
        written.forks += 1
        name = f"{written.name}-{written.forks}"
        async with self.seen.timed("fork"):
            given = json.dumps({"id": name}).encode()
            await self.http.request("POST", f"/v1/sessions/{written.name}/fork", given)
            await Ours.context(self.side, self.http, name)  # with GET, also for an agent that sends whole lists

    async def erase(self, name: str) -> None:
        """Erase a session that has ended, and its forks."""
        async with self.seen.timed("erase"):
            await self.http.request("DELETE", f"/v1/sessions/{name}?forks=erase")

    def _written(self) -> Written:
        if self.now is None:
            raise RuntimeError("this agent has not begun")
        return self.now


def _number(pattern: re.Pattern[bytes], answer: bytes) -> int:
    found = pattern.search(answer)
    if found is None:
        raise UnexpectedResponse(f"an answer without {pattern.pattern!r}: {answer[:200]!r}")
    return int(found[1])


def spread(lengths: Sequence[int], agents: int) -> list[tuple[int, int]]:
    """Return evenly spaced places (a life, a step of it) over lives of these lengths laid end to end."""
    ends = list(accumulate(lengths))
    places = [number * ends[-1] // agents for number in range(agents)]
    lives = [bisect_right(ends, place) for place in places]
    return [(life, place - ends[life] + lengths[life]) for place, life in zip(places, lives, strict=True)]


class AgentPool:
    """All agents; the next free one runs the next operation. `ended` are ended sessions that are not erased yet."""

    def __init__(
        self, sides: tuple[Ours, WholeListClient], lives: Sequence[Life], seen: Measurements, seed: int = 1
    ) -> None:
        self._sides, self._lives, self._seen = sides, lives, seen
        self._chance = Random(seed)
        self._users: list[User] = []
        self._free: asyncio.Queue[User] = asyncio.Queue()
        self.ended: deque[Written] = deque()
        self.erased: list[str] = []
        self.streamed = 0

    async def begin(self, agents: int) -> None:
        """Start the agents, spread evenly over all lives, which each goes through in a cycle.

        So the sessions are equally long on average at all times.
        """
        for number in range(agents):
            side = self._sides[number % WHOLE_EVERY == 0]
            http = await Spread.connect(self._sides[0].ports, number)
            self._users.append(User(f"soak-{number}", side, http, self._lives, self._seen, Random(number)))
        places = spread([len(life.steps) for life in self._lives], agents)
        await asyncio.gather(*[user.begin_at(*place) for user, place in zip(self._users, places, strict=True)])
        for user in self._users:
            self._free.put_nowait(user)

    def sessions(self) -> list[Written]:
        """Return all sessions that are not erased."""
        return [*self.ended, *(user.now for user in self._users if user.now is not None)]

    def mean_kb(self) -> float:
        """Return the mean KB posted to a running session."""
        living = [user.now.chars for user in self._users if user.now is not None]
        return sum(living) / max(1, len(living)) / 1024

    async def run_next(self, due: float | None = None) -> None:
        """Run one operation by the next free agent; `due` is the time at which it was to begin."""
        user = await self._free.get()
        if due is not None:
            self._seen.add("late", due)
        kind = self._chance.choices(list(SHARES), list(SHARES.values()))[0]
        try:
            await self._do(user, kind)
            self._seen.ticks += 1
        except (RuntimeError, OSError, UnexpectedResponse) as error:
            self._seen.failure(kind, error)
            with suppress(RuntimeError, OSError, UnexpectedResponse):
                await user.begin()  # again, because its last append may be missing
        finally:
            self._free.put_nowait(user)

    async def _do(self, user: User, kind: str) -> None:
        written = user.now
        if written is None or written.steps >= len(written.life.steps):
            if written is not None:
                self.ended.append(written)
            await user.begin()
        elif kind == "erase" and len(self.ended) > len(self._users) // 4:
            gone = self.ended.popleft()
            self.erased.append(gone.name)
            await user.erase(gone.name)
        elif kind in ("recall", "audit", "fork") and written.calls:
            await {"recall": user.recall, "audit": user.audit, "fork": user.fork}[kind]()
        else:
            await user.call()

    async def closed(self, at_once: int, seconds: float) -> float:
        """Run `at_once` operations concurrently for some time; return the number completed a second."""
        until = time.perf_counter() + seconds
        before = self._seen.ticks

        async def work() -> None:
            while time.perf_counter() < until:
                await self.run_next()

        begun = time.perf_counter()
        await asyncio.gather(*[work() for _ in range(at_once)])
        return (self._seen.ticks - before) / (time.perf_counter() - begun)

    async def open(self, per_second: float, seconds: float) -> None:
        """Start `per_second` operations a second on average, at random moments, without waiting for earlier ones."""
        due = begun = time.perf_counter()
        async with asyncio.TaskGroup() as running:
            while (due := due + self._chance.expovariate(per_second)) < begun + seconds:
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                running.create_task(self.run_next(due))

    async def listening(self) -> None:
        """Follow the stream of one session after the other, until cancelled."""
        listener: Listener | None = None
        try:
            while True:
                written = self._chance.choice([user.now for user in self._users if user.now is not None])
                port = self._chance.choice(self._sides[0].ports)
                listener = await Listener.listen(port, written.name, written.head)
                with suppress(TimeoutError):
                    await asyncio.wait_for(listener.ended.wait(), LISTEN_SECONDS)
                self._record_stream(listener, written)
        finally:
            if listener is not None:
                listener.close()

    def _record_stream(self, listener: Listener, written: Written) -> None:
        listener.close()
        self.streamed += listener.read
        if listener.gaps or (listener.status != 200 and written.name not in self.erased):
            self._seen.failure("stream", f"{listener.gaps} gaps, status {listener.status}")

    def close(self) -> None:
        """Close all connections."""
        for user in self._users:
            user.http.close()
