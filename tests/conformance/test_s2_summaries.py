"""S2: one cumulative summary of all but the newest turns, written between turns, under the preset `pipeline`."""

import asyncio

import httpx

from app.runtime.settings import Settings
from tests.conformance.agent import Agent, Json, request_text
from tests.conformance.conftest import WAIT_MS, check_coverage, compact, live_summary, runs, summaries
from tests.conftest import serving
from tests.support.summarizers import Summarizers, ok, status

WINDOW = 8_000
SECONDS_MAX = 60
TEXT = "word " * 240
"""A text of three hundred tokens by its bytes."""


def turn(number: int, *, times: int = 1) -> list[Json]:
    """Return a turn of two events."""
    return [
        {"type": "user.message", "content": f"question-{number}. {TEXT * times}"},
        {"type": "assistant.message", "content": f"answer-{number}. {TEXT * times}"},
    ]


async def begin(client: httpx.AsyncClient, *turns: list[Json]) -> Agent:
    """Create a session with these turns; its window is unknown until its first context."""
    agent = await Agent.begin(client, "pipeline", max_tokens=WINDOW)
    for events in turns:
        await agent.post(*events)
    return agent


async def written(client: httpx.AsyncClient) -> Json:
    """Return the live summary once there is one."""
    async with asyncio.timeout(SECONDS_MAX):
        while not (found := await summaries(client)):
            pass
    return found[-1]


async def test_s2_10_the_summary_of_all_but_the_newest_two_turns_is_written_between_turns(
    client: httpx.AsyncClient, worker: None, model: Summarizers
) -> None:
    agent = await begin(client)
    await agent.user("hello")
    await agent.context()
    await agent.post(*(event for number in range(2, 12) for event in turn(number)))  # without any context in between
    made = await written(client)
    assert (made["from_seq"], made["to_seq"]) == (1, 17)  # the first turn, and eight turns of two events
    assert "question-9." in model.requests[0].prompt and "question-10." not in model.requests[0].prompt
    before = await agent.context()
    assert before["summaries"] == []  # everything fits
    await agent.post(*turn(12, times=4))
    context = await agent.context()
    assert context["summaries"] != []
    assert all(f"{said}-{number}." in request_text(context) for said in ("question", "answer") for number in (11, 12))


async def test_s2_10_two_turns_are_never_summarized(
    client: httpx.AsyncClient, worker: None, model: Summarizers
) -> None:
    agent = await begin(client, turn(1), turn(2))
    await agent.context()
    run = await compact(client)
    assert (run["state"], model.requests, await summaries(client, live=False)) == ("skipped", [], [])


async def test_s2_10_a_providers_error_leaves_no_row_and_the_run_can_be_retried(
    client: httpx.AsyncClient, worker: None, model: Summarizers
) -> None:
    agent = await begin(client, turn(1), turn(2), turn(3))
    before = await agent.context()
    model.queue(status(400, message="it cannot be done"))
    run = await compact(client)
    assert (run["state"], await summaries(client, live=False)) == ("failed", [])
    assert "it cannot be done" in run["error"]
    assert (await agent.context())["sha256"] == before["sha256"]
    await client.post(f"/v1/sessions/s/compactions/{run['id']}:retry")
    assert (await written(client))["to_seq"] == 2


async def test_s2_10_a_temporary_error_is_retried_automatically(
    client: httpx.AsyncClient, fast_retries: None, worker: None, model: Summarizers
) -> None:
    agent = await begin(client, turn(1), turn(2), turn(3))
    await agent.context()
    model.queue(status(500))
    run = await compact(client)
    assert (run["state"], run["attempts"], len(model.requests)) == ("succeeded", 1, 2)
    assert (await live_summary(client))["to_seq"] == 2


async def test_s2_11_the_next_request_has_the_summary_in_place_of_the_first_turn(
    client: httpx.AsyncClient, worker: None
) -> None:
    agent = await begin(client, turn(1, times=8), turn(2), turn(3, times=5))  # too much for the window
    context = await agent.context(format="openai", wait_ms=WAIT_MS)
    made = await live_summary(client)
    assert (made["from_seq"], made["to_seq"], made["prompt_version"]) == (1, 2, "structured.v1")
    messages = context["request"]["messages"]
    assert messages[0]["role"] == "system"
    assert made["text"] in messages[0]["content"]
    assert [message["content"].split()[0] for message in messages[1:]] == [
        "question-2.",
        "answer-2.",
        "question-3.",
        "answer-3.",
    ]
    await check_coverage(client)


async def test_s2_11_each_summary_supersedes_the_one_before(
    client: httpx.AsyncClient, worker: None, model: Summarizers
) -> None:
    agent = await begin(client, turn(1), turn(2), turn(3))
    await agent.context()
    await compact(client)
    first = await live_summary(client)
    await agent.calls("read", f"found it {TEXT}")
    await agent.post(*turn(4), *turn(5))
    await compact(client)
    second = await live_summary(client)
    assert (second["from_seq"], second["to_seq"], second["sources"]) == (1, 8, [first["id"]])
    conversation, previous = model.requests[-1].prompt.split("</conversation>")
    assert first["text"] in previous
    assert "question-1." not in conversation and "question-2." in conversation
    assert "[Tool result]: " in conversation and "found it" in conversation
    old = (await summaries(client, live=False))[0]
    assert (old["status"], old["superseded_by"]) == ("superseded", second["id"])
    assert [row["to_seq"] for row in await runs(client)] == [8, 2]


async def test_s2_12_a_context_is_the_latest_summary_and_the_events_after_it(
    client: httpx.AsyncClient, worker: None
) -> None:
    agent = await begin(client, *(turn(number) for number in range(1, 6)))
    await agent.context()
    await compact(client)
    await agent.context(force=True)
    await agent.post(*turn(6), *turn(7))
    await compact(client)
    context = await agent.context(force=True)
    latest = (await live_summary(client))["id"]
    assert [(row["id"], row["from_seq"], row["to_seq"]) for row in context["summaries"]] == [(latest, 1, 10)]
    assert [row["to_seq"] for row in await check_coverage(client)] == [10, 14]
    assert [event["seq"] for event in await agent.log()] == list(range(1, 15))


async def test_s2_12_another_process_makes_the_same_context(
    client: httpx.AsyncClient, worker: None, database_url: str, model: Summarizers
) -> None:
    agent = await begin(client, *(turn(number) for number in range(1, 6)))
    await agent.context()
    model.queue(ok())
    await compact(client)
    context = await agent.context(force=True)
    async with serving(Settings(), database_url) as url, httpx.AsyncClient(base_url=url, timeout=30) as other:
        revived = await Agent(other, max_tokens=WINDOW).context()
    assert (revived["sha256"], revived["summaries"]) == (context["sha256"], context["summaries"])
    assert revived["summaries"][0]["to_seq"] == 6
