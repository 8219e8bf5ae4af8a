"""Sessions of more than ten windows, run as agents do: over their trigger, with a worker that keeps up.

Each session runs once in two ways: `turns`, call by call, and `bulk`, posted whole before the first context. The result
is kept as plain values, so that each test checks one row. Nothing is forced; compactions that a design makes inline are
requested with `wait_ms`.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from app.core.compaction.prompt import GAP
from app.runtime.settings import Settings
from tests.conformance.agent import Agent, Json
from tests.conformance.conftest import preset, running_worker
from tests.conftest import serving
from tests.support.databases import migrated
from tests.support.queue import WorkerQueue, worker_queue
from tests.support.summarizers import ReceivedRequest, Summarizers, summarizers

WAYS = ("turns", "bulk")
TURN_EVENTS = 4
LATER = 6
"""The number of turns that follow the ones posted in bulk."""


def turn(number: int, lines: int) -> list[Json]:
    """Return a turn of four events: a question, a call, its result of `lines` lines, and an answer."""
    found = "\n".join(f"src/part-{number}/file{n}.py: the {n}th value there is {number}{n}" for n in range(lines))
    return [
        {"type": "user.message", "content": f"question-{number}. {'Please look at the next part of it. ' * 6}"},
        {"type": "tool.call", "call_id": f"c{number}", "tool": "grep", "arguments": {"path": f"src/part_{number}"}},
        {"type": "tool.result", "call_id": f"c{number}", "content": f"result-{number}.\n{found}"},
        {"type": "assistant.message", "content": f"answer-{number}. {'It is as it should be, so I go on. ' * 6}"},
    ]


@dataclass(frozen=True)
class ViewContext:
    """A context of a view, and the summaries that were live when it was requested, oldest first."""

    context: Json
    live: tuple[Json, ...]

    @property
    def head(self) -> int:
        return int(self.context["head"])

    @property
    def estimate(self) -> int:
        return int(self.context["tokens"]["estimate"])

    @property
    def covered_to(self) -> int:
        """The last seq covered by a live summary."""
        return max((int(row["to_seq"]) for row in self.live), default=0)

    @property
    def folded_to(self) -> int:
        """The last seq that the context's summaries cover."""
        return max((int(row["to_seq"]) for row in self.context["summaries"]), default=0)

    def runs(self, disposition: str) -> list[Json]:
        return [row for row in self.context["evictions"] if row["disposition"] == disposition]


@dataclass(frozen=True)
class SessionCourse:
    """The course of a session.

    `calls` are the contexts of its main view and `first` that of a new view. `summaries` holds every summary ever made,
    oldest first, `asked` the requests to the model, `coverage` the coverage of both views, and `epochs` those of the
    main view.
    """

    log: tuple[Json, ...]
    calls: tuple[ViewContext, ...]
    first: ViewContext
    summaries: tuple[Json, ...]
    asked: tuple[ReceivedRequest, ...]
    coverage: tuple[Json, ...]
    epochs: tuple[Json, ...]
    runs: tuple[Json, ...]

    @property
    def all_contexts(self) -> tuple[ViewContext, ...]:
        """The contexts of both views."""
        return (*self.calls, self.first)

    @property
    def texts(self) -> dict[int, str]:
        """The first word of every event that has content, by seq."""
        said = ((event["seq"], event.get("content")) for event in self.log)
        return {seq: content.split()[0] for seq, content in said if content}

    def seq(self, number: int) -> int:
        """Return the first seq of a turn."""
        return TURN_EVENTS * number + 1


async def run_sessions(
    postgres: str, template: str, policy: str, *, window: int, turns: int, lines: int, **asks: Any
) -> dict[str, SessionCourse]:
    """Run a session under a preset in both ways concurrently, each in its own database."""

    async def lived(way: str) -> SessionCourse:
        async with migrated(postgres, template) as url, summarizers() as model, worker_queue(url) as done_working:
            return await _way(url, model, done_working, way, policy, window, turns, lines, asks)

    return dict(zip(WAYS, await asyncio.gather(*map(lived, WAYS)), strict=True))


async def _way(
    url: str,
    model: Summarizers,
    done_working: WorkerQueue,
    way: str,
    policy: str,
    window: int,
    turns: int,
    lines: int,
    asks: Json,
) -> SessionCourse:
    async with serving(Settings(), url) as base, running_worker(url, model), httpx.AsyncClient(base_url=base) as client:
        client.timeout = httpx.Timeout(60)
        document = {**(await preset(client, policy)), "window_tokens": window}
        agent = await Agent.begin(client, document, **asks)
        found = await _lived(client, agent, model, done_working, way, turns, lines)
        counted = {"estimator": found.first.context["tokens"]["estimator"]}
        whole = {"policy": counted, "max_tokens": 100 * window, "view": "whole", "format": "openai"}
        size = (await client.post("/v1/sessions/s/context:preview", json=whole)).json()["tokens"]["estimate"]
        assert size > 10 * window, size
        return found


async def _lived(
    client: httpx.AsyncClient,
    agent: Agent,
    model: Summarizers,
    done_working: WorkerQueue,
    way: str,
    turns: int,
    lines: int,
) -> SessionCourse:
    calls: list[ViewContext] = []
    if way == "bulk":
        posted = turns - LATER
        await agent.post(*(event for number in range(posted) for event in turn(number, lines)))
        await done_working()
        calls.append(await _seen(client, agent))
    else:
        posted = 0
    for number in range(posted, turns):
        events = turn(number, lines)
        middle = 3 if number % 4 == 0 else TURN_EVENTS  # every fourth turn has a call in the middle, after a result
        for part in filter(None, (events[:middle], events[middle:])):
            await agent.post(*part)
            await done_working()
            calls.append(await _seen(client, agent))
    first = await _seen(client, agent, view="another")
    coverage = [(await client.get("/v1/sessions/s/coverage", params={"view": v})).json() for v in ("main", "another")]
    return SessionCourse(
        log=tuple(await agent.log()),
        calls=tuple(calls),
        first=first,
        summaries=tuple(await _all(client, "summaries", live="false")),
        asked=tuple(model.requests),
        coverage=tuple(coverage),
        epochs=tuple(await _all(client, "epochs", view="main")),
        runs=tuple(await _all(client, "compactions")),
    )


async def _seen(client: httpx.AsyncClient, agent: Agent, **asks: Any) -> ViewContext:
    there = (await client.get("/v1/sessions/s/summaries", params={"live": True, "limit": 1000})).json()["items"]
    return ViewContext(await agent.context(**asks), tuple(there))


async def _all(client: httpx.AsyncClient, what: str, **params: str) -> list[Json]:
    found: list[Json] = []
    cursor: dict[str, str] = {}
    while True:
        page = (await client.get(f"/v1/sessions/s/{what}", params={**params, "limit": "100", **cursor})).json()
        found += page["items"]
        if not page["next_cursor"]:
            break
        cursor = {"cursor": page["next_cursor"]}
    if what != "summaries":
        return found
    return [(await client.get(f"/v1/sessions/s/summaries/{row['id']}")).json() for row in found]


def check_accounted(lived: SessionCourse) -> None:
    """Check that every event has one disposition in both views (I4) and no covered event was dropped (I11)."""
    for proof in lived.coverage:
        assert proof["ok"], proof["faults"]
        seqs = [seq for row in proof["runs"] for seq in range(row["from_seq"], row["to_seq"] + 1)]
        assert seqs == list(range(1, len(lived.log) + 1))
    for seen in lived.all_contexts:
        assert seen.estimate <= seen.context["tokens"]["target"]
        lost = [row for row in seen.runs("dropped") if row["from_seq"] <= seen.covered_to]
        assert lost == [], (seen.head, seen.covered_to)


def requested_seqs(lived: SessionCourse, asked: ReceivedRequest) -> list[int]:
    """Return the seqs of the events in a request's conversation, without the user messages repeated before it."""
    conversation = asked.prompt.partition("</conversation>")[0].rpartition(GAP)[2]
    return [seq for seq, text in lived.texts.items() if text in conversation]


def first_words(messages: Sequence[Json]) -> list[str]:
    """Return the first word of every message that has content."""
    return [str(m["content"]).split()[0] for m in messages if m.get("content")]
