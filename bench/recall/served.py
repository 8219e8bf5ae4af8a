"""Questions about dialogues over HTTP, against a real server."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import httpx2

from app.core.log.event import Event
from bench.recall.ranking import FIRST, Question, QuestionedDialogue
from bench.retention.points import message_of
from palimpsest_tools.server import address, running_server


@dataclass(slots=True)
class LimitResults:
    """Results of all questions with one limit: whether they hold all and any evidence, and their seconds."""

    limit: int | None
    every: list[bool] = field(default_factory=list)
    some: list[bool] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    async def ask(self, http: httpx2.AsyncClient, session: str, question: Question, message: Mapping[int, int]) -> None:
        """Ask one question."""
        begun = time.perf_counter()
        answer = await http.post(f"{session}/recall", json={"query": question.text, "limit": self.limit})
        self.times.append(time.perf_counter() - begun)
        found = {message[item["seq"]] for item in answer.raise_for_status().json()["items"]}
        self.every.append(all(index in found for index in question.evidence))
        self.some.append(any(index in found for index in question.evidence))

    def row(self) -> str:
        """Return a row of the table."""
        count = len(self.every)
        half, most = (sorted(self.times)[count * part // 100] * 1000 for part in (50, 99))
        every, some = sum(self.every) / count, sum(self.some) / count
        limit = "no limit" if self.limit is None else f"at most {self.limit}"
        return f"| {count} questions, {limit} | {every:.1%} | {some:.1%} | {half:.1f} | {most:.1f} |"


async def table(dialogues: Sequence[QuestionedDialogue], url: str | None) -> str:
    """Return Markdown: all and any evidence among the server's results, and their latency."""
    asking = [LimitResults(FIRST), LimitResults(None)]
    first: list[float] = []
    async with (
        running_server(address(url, None)) as server,
        httpx2.AsyncClient(base_url=server.url, timeout=60) as http,
    ):
        for asked in dialogues:
            session = f"/v1/sessions/bench-recall-{uuid4()}"
            await _append(http, session, asked)
            message = {event.seq: message_of(event) for event in asked.one.events}
            begun = time.perf_counter()
            (await http.post(f"{session}/recall", json={"query": "once"})).raise_for_status()
            first.append(time.perf_counter() - begun)
            for question in asked.questions:
                for each in asking:
                    await each.ask(http, session, question, message)
            (await http.delete(session)).raise_for_status()
    return "\n".join(
        [
            "| over HTTP | all evidence | any evidence | p50 ms | p99 ms |",
            "|---|---|---|---|---|",
            *(each.row() for each in asking),
            f"\nThe first search of a session: at most {max(first) * 1000:.0f} ms.",
        ]
    )


async def _append(http: httpx2.AsyncClient, session: str, asked: QuestionedDialogue) -> None:
    """Append all events of the dialogue; their seqs must equal those here."""
    events = as_posted(asked.one.events)
    if [event.seq for event in asked.one.events] != list(range(1, len(events) + 1)):
        raise AssertionError("the dialogue's events are not the first ones of its log")
    for at in range(0, len(events), 500):
        (await http.post(f"{session}/events", json={"events": events[at : at + 500]})).raise_for_status()


def as_posted(events: Sequence[Event]) -> list[dict[str, Any]]:
    """Return events as a client posts them, with their recorded times."""
    return [
        {"occurred_at": datetime.fromtimestamp(event.at, UTC).isoformat()} | dict(event.body or {}) for event in events
    ]
