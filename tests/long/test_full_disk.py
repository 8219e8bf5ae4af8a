"""A disk that fills up and is freed again, under two APIs and two workers: nothing acknowledged is lost."""

import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from app.store import embedded
from tests.acceptance.conftest import Command, Commands
from tests.conformance.agent import Json

pytestmark = pytest.mark.embedded("its disk fills up")

DISK_BYTES = 400_000_000
ROUNDS = 4
WRITERS = 4
SECONDS_BACK = 10.0
SECONDS_MAX = 120
SECONDS_WITHOUT_POSTGRES = 8.0
"""Duration of the outage, which covers several attempts to start Postgres."""
LINES_A_ROUND_MAX = 8
"""Warnings and errors of one process in a round, besides a line for each refused request."""
REFUSALS = 3
CONTEXT_EVERY = 5
TOLD = re.compile(r"^\S+Z \[(warning|error|critical)")
POLICY = {
    "window_tokens": 12_000,
    "reserve_tokens": 0,
    "retention": {"keep_last": None, "superseded": False, "arguments": False},
}
WORDS = "The build of the parser takes the configuration from its own folder and writes the result to disk. " * 40
SAME = ("request", "sha256", "tokens", "summaries", "evictions", "head", "epoch", "policy", "call_id")


class Writer:
    """A client that appends turns in order, each under a key of its own, until each is acknowledged."""

    def __init__(self, name: str, urls: list[str]) -> None:
        self._path, self._urls = f"/v1/sessions/{name}", urls
        self._http = httpx.AsyncClient(timeout=30)
        self._asked = 0
        self.name = name
        self.acknowledged: dict[int, str] = {}
        self.sent: list[str] = []
        self.contexts: list[Json] = []
        self.seen: Counter[int] = Counter()
        self.refused_in_a_row = 0
        self.changed = asyncio.Condition()

    async def live(self, enough: asyncio.Event) -> None:
        """Append turns and request a context from time to time, until `enough` is set."""
        await self.ask("PUT", "", {"policy": POLICY})
        turn = 0
        while not enough.is_set():
            turn += 1
            texts = [f"question {turn}: look at src/part_{turn}.py", f"Answer {turn}. {WORDS}"]
            events = [
                {"type": kind, "content": text}
                for kind, text in zip(("user.message", "assistant.message"), texts, strict=True)
            ]
            answer = await self.ask("POST", "/events", {"events": events}, {"Idempotency-Key": f"turn-{turn}"})
            self.acknowledged |= {row["seq"]: text for row, text in zip(answer["events"], texts, strict=True)}
            self.sent += texts
            if turn % CONTEXT_EVERY == 0:
                self.contexts.append(await self.ask("POST", "/context", {"format": "openai"}))

    async def ask(
        self, method: str, path: str, body: Json | None = None, headers: dict[str, str] | None = None
    ) -> Json:
        """Return the response, alternating between the APIs until one gives it. Refusals must have a `Retry-After`."""
        async with asyncio.timeout(SECONDS_MAX):
            while True:
                self._asked += 1
                url = self._urls[self._asked % len(self._urls)] + self._path + path
                answer = await self._http.request(method, url, json=body, headers=headers)
                self.seen[answer.status_code] += 1
                await self._note(refused=not answer.is_success)
                if answer.is_success:
                    found: Json = answer.json()
                    return found
                assert answer.status_code == 503, answer.text
                assert answer.json()["type"] == "/problems/store-unavailable", answer.text
                await asyncio.sleep(int(answer.headers["retry-after"]))  # wait as the server requires

    async def is_refused(self) -> None:
        """Wait until REFUSALS requests in a row are refused."""
        async with self.changed:
            await self.changed.wait_for(lambda: self.refused_in_a_row >= REFUSALS)

    async def is_taken(self) -> None:
        """Wait until a request succeeds after the last refusal."""
        async with self.changed:
            await self.changed.wait_for(lambda: self.refused_in_a_row == 0)

    async def check(self) -> int:
        """Assert that acknowledged events are stored once, in order, and calls render again; return their number."""
        log: list[Json] = []
        while page := (await self._get("/events", after=len(log), limit=1000))["items"]:
            log += page
        assert [event["seq"] for event in log] == list(range(1, len(self.sent) + 1))
        assert [event["content"] for event in log] == self.sent
        assert {event["seq"]: event["content"] for event in log} == self.acknowledged
        coverage = await self._get("/coverage")
        assert coverage["ok"], coverage["faults"]
        calls: list[str] = []
        cursor: dict[str, str] = {}
        while True:
            listed = await self._get("/calls", limit=100, **cursor)
            calls += [call["call_id"] for call in listed["items"]]
            if listed["next_cursor"] is None:
                break
            cursor = {"cursor": listed["next_cursor"]}
        assert {context["call_id"] for context in self.contexts} <= set(calls)
        for call in calls:
            assert (await self._get(f"/calls/{call}/context"))["reproduced"] is True
        for context in self.contexts:
            again = await self._get(f"/calls/{context['call_id']}/context")
            assert {name: again[name] for name in SAME} == {name: context[name] for name in SAME}
        return len(calls)

    async def close(self) -> None:
        await self._http.aclose()

    async def _get(self, path: str, **params: int | str) -> Json:
        answer = await self._http.get(self._urls[0] + self._path + path, params=params)
        assert answer.status_code == 200, answer.text
        found: Json = answer.json()
        return found

    async def _note(self, *, refused: bool) -> None:
        async with self.changed:
            self.refused_in_a_row = self.refused_in_a_row + 1 if refused else 0
            self.changed.notify_all()


@pytest.fixture
def disk() -> Iterator[Path]:
    """Mount a small file system."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("only root can mount a small file system (tmpfs) to fill")
    with tempfile.TemporaryDirectory(prefix="palimpsest-test-") as name:
        mount = ("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "palimpsest-test", name)
        mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
        if mounted.returncode:
            pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
        try:
            yield Path(name)
        finally:
            subprocess.run(("umount", name), check=True)


@pytest.fixture
async def commands(disk: Path) -> AsyncIterator[Commands]:
    """Return a starter of commands on the disk; all are killed at the end."""
    running = Commands(disk / "data")
    yield running
    await running.kill_all()


def fill(ballast: Path) -> None:
    """Fill the remaining space."""
    with suppress(OSError), ballast.open("ab", buffering=0) as file:
        while True:
            file.write(bytes(4096))


async def is_full(ballast: Path, writers: list[Writer]) -> None:
    """Fill the disk, including space that the database frees, until every writer is refused."""
    async with asyncio.timeout(SECONDS_MAX):
        refused = asyncio.ensure_future(asyncio.gather(*(writer.is_refused() for writer in writers)))
        while not refused.done():
            await asyncio.to_thread(fill, ballast)
            await asyncio.wait({refused}, timeout=0.2)
        await refused


async def is_back(urls: list[str], writers: list[Writer]) -> None:
    """Wait until every writer's requests succeed and every API is ready."""
    await asyncio.gather(*(writer.is_taken() for writer in writers))
    async with httpx.AsyncClient(timeout=10) as http:
        for url in urls:
            while (await http.get(f"{url}/readyz")).status_code != 200:
                pass


async def start_process(commands: Commands, role: str) -> Command:
    """Start a process on the database of `serve`."""
    return await commands.start(role, DATABASE_URL=embedded.url(commands.folder))


def problems_in(lines: list[str]) -> list[str]:
    """Return the warnings and errors that are not about requests."""
    return [line for line in lines if TOLD.match(line) and "store-unavailable" not in line]


@pytest.mark.long
async def test_a_full_disk_loses_nothing_and_is_over_when_there_is_room(commands: Commands, disk: Path) -> None:
    serve = await commands.start("serve")
    urls = [await serve.url()]
    api, worker = await start_process(commands, "api"), await start_process(commands, "worker")
    urls.append(await api.url())
    await worker.expect_line("starting")
    await worker.expect_line("working")
    writers = [Writer(f"s{number}", urls) for number in range(WRITERS)]
    enough = asyncio.Event()
    back: list[float] = []
    async with asyncio.TaskGroup() as group, httpx.AsyncClient(timeout=10) as http:
        for writer in writers:
            group.create_task(writer.live(enough))
        for number in range(ROUNDS):
            for writer in writers:
                await writer.is_taken()
            ballast = disk / "ballast"
            await is_full(ballast, writers)
            if number % 2:  # as it ends when it cannot write its own log
                killed = commands.postmaster()
                assert killed is not None
                killed.kill()
                await asyncio.sleep(SECONDS_WITHOUT_POSTGRES)
            assert {(await http.get(f"{url}/healthz")).status_code for url in urls} == {200}
            assert {(await http.get(f"{url}/readyz")).status_code for url in urls} == {503}
            freed = time.monotonic()
            ballast.unlink()
            async with asyncio.timeout(SECONDS_MAX):
                await is_back(urls, writers)
            back.append(time.monotonic() - freed)
        enough.set()
    calls = [await writer.check() for writer in writers]
    for writer in writers:
        await writer.close()
    seen = sum((writer.seen for writer in writers), Counter[int]())
    said: list[list[str]] = []
    for command in (worker, api, serve):
        status, lines = await command.stop()
        assert status == 0, lines
        said.append(problems_in(lines))
    print(f"{sum(len(writer.acknowledged) for writer in writers)} events, {sum(calls)} calls, answers: {dict(seen)}")
    print(f"back after {[round(seconds, 1) for seconds in back]} seconds; lines: {[len(lines) for lines in said]}")
    assert max(back) < SECONDS_BACK
    for lines in said:
        assert len(lines) <= ROUNDS * LINES_A_ROUND_MAX, lines
    of_postgres = [line for line in said[-1] if "the embedded PostgreSQL" in line]
    for change in ("has ended", "does not stay up", "is back"):  # it may stay up on space freed by its end
        assert sum(change in line for line in of_postgres) <= ROUNDS // 2, of_postgres
    assert any("has ended" in line for line in of_postgres)
    assert any("is back" in line for line in of_postgres)
