"""The same questions asked of a real server over HTTP."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import uuid4

import httpx2

from app.remote.address import Address
from app.remote.server import running_server
from app.settings import Settings
from bench.recall.ranking import FIRST, Asked
from bench.retention.points import message_of


async def table(dialogues: Sequence[Asked], url: str | None) -> str:
    """Markdown: all and any evidence among the first results that the server gives, and how long that takes."""
    every: list[bool] = []
    some: list[bool] = []
    times: list[float] = []
    first: list[float] = []
    address = Address(url or Settings().server_url, named=url is not None)
    async with running_server(address) as server, httpx2.AsyncClient(base_url=server.url, timeout=60) as http:
        for asked in dialogues:
            session = f"/v1/sessions/bench-recall-{uuid4()}"
            await _append(http, session, asked)
            message = {event.seq: message_of(event) for event in asked.one.events}
            own: list[float] = []
            for question in asked.questions:
                begun = time.perf_counter()
                answer = await http.post(f"{session}/recall", json={"query": question.text, "limit": FIRST})
                own.append(time.perf_counter() - begun)
                found = {message[item["seq"]] for item in answer.raise_for_status().json()["items"]}
                every.append(all(index in found for index in question.evidence))
                some.append(any(index in found for index in question.evidence))
            first.append(own[0])
            times += own[1:]
            (await http.delete(session)).raise_for_status()
    times.sort()
    return "\n".join(
        [
            "| over HTTP | all evidence | any evidence | p50 ms | p99 ms | the first of a session, ms at most |",
            "|---|---|---|---|---|---|",
            f"| {len(every)} questions | {sum(every) / len(every):.1%} | {sum(some) / len(some):.1%}"
            f" | {times[len(times) // 2] * 1000:.1f} | {times[len(times) * 99 // 100] * 1000:.1f}"
            f" | {max(first) * 1000:.0f} |",
        ]
    )


async def _append(http: httpx2.AsyncClient, session: str, asked: Asked) -> None:
    """All events of the dialogue with the time they were recorded at, in the place they have here."""
    events = [
        {"occurred_at": datetime.fromtimestamp(event.at, UTC).isoformat()} | dict(event.body or {})
        for event in asked.one.events
    ]
    if [event.seq for event in asked.one.events] != list(range(1, len(events) + 1)):
        raise AssertionError("the dialogue's events are not the first ones of its log")
    for at in range(0, len(events), 500):
        (await http.post(f"{session}/events", json={"events": events[at : at + 500]})).raise_for_status()
