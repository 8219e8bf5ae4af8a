"""A turn many times longer than the window, summarized by a model that refuses large requests."""

from typing import Any

import httpx
import pytest

from tests.conformance.agent import WAIT_MS, Agent, Json, evicted_seqs
from tests.conformance.conftest import preset, running_worker, summaries
from tests.support.queue import worker_queue
from tests.support.summarizers import Behaviour, ReceivedRequest, Reply, Summarizers, is_prefix, ok

REQUEST = "Port the tide service of the northern harbours from Perl to Rust, gauge by gauge."
REFUSED_ABOVE = 50_000
WINDOW_TOKENS = 100_000
"""The window of the summarizers in the settings."""
PRESETS = ("default", "timeline", "pipeline", "clip", "threshold")
WINDOWS = (12_000, 60_000, 200_000)
EACH_AND_ALL = [
    pytest.param(
        name, window, marks=pytest.mark.slow if name == "default" or window == WINDOWS[0] else pytest.mark.long
    )
    for name in PRESETS
    for window in WINDOWS
]
"""Each preset in the smallest window and the default in all of them; the other pairs are `long`."""
ROUNDS = 2_000
CALLS = 40
"""The number of contexts requested while the turn grows."""


def rounds(first: int, last: int) -> list[Json]:
    """Return rounds of a call and its result, about two hundred tokens each."""
    events: list[Json] = []
    for number in range(first, last):
        found = "\n".join(f"{line}: sub gauge_{number}_{line} returns the height at {line}" for line in range(10))
        events += [
            {"type": "tool.call", "call_id": f"c{number}", "tool": "read", "arguments": {"path": f"lib/{number}.pm"}},
            {"type": "tool.result", "call_id": f"c{number}", "content": f"RES{number}\n{found}"},
        ]
    return events


def size(asked: ReceivedRequest) -> int:
    """Return the tokens of a request as the fake model counts them."""
    return (len(asked.system) + len(asked.prompt)) // 4 + 1


def refusing(tokens: int) -> Behaviour:
    """Refuse requests above `tokens` without naming a limit; answer others without quoting the user."""

    async def answer(asked: ReceivedRequest) -> Reply:
        if size(asked) > tokens:
            return Reply("Your input exceeds the context window of this model.", status=400)
        return await ok().answer(asked)

    return Behaviour(answer)


async def begin_session(client: httpx.AsyncClient, name: str, window: int, **summarize: Any) -> Agent:
    document = {**(await preset(client, name, **summarize)), "window_tokens": window}
    client.timeout = httpx.Timeout(2 * WAIT_MS / 1_000)
    agent = await Agent.begin(client, document)
    await agent.user(REQUEST)
    return agent


async def post_rounds(agent: Agent, first: int, last: int) -> None:
    for start in range(first, last, 500):
        await agent.post(*rounds(start, min(last, start + 500)))


def check_requests(model: Summarizers, above: int) -> None:
    """Check that every request fits the window, has the user's request, and is not repeated after a refusal."""
    assert model.requests
    for asked in model.requests:
        assert size(asked) <= WINDOW_TOKENS
        assert REQUEST in asked.prompt or "<conversation>" not in asked.prompt
        assert not is_prefix(asked) or REQUEST in asked.prompt
    refused = [asked.prompt for asked in model.requests if size(asked) > above]
    assert len(refused) == len(set(refused)) <= 2
    assert len({asked.prompt for asked in model.requests}) == len(model.requests)


async def check_summaries(client: httpx.AsyncClient) -> list[Json]:
    """Check that every summary, live or not, contains the user's request; return them."""
    made = await summaries(client, live=False)
    assert made
    for row in made:
        assert REQUEST in row["text"], (row["from_seq"], row["to_seq"], row["depth"], row["text"])
        assert not row["degraded"]
    runs = (await client.get("/v1/sessions/s/compactions", params={"limit": 500})).json()["items"]
    assert {run["state"] for run in runs} <= {"succeeded", "skipped"}, runs
    return made


def check_context(context: Json) -> None:
    assert not evicted_seqs(context, "dropped")
    assert context["summaries"]
    assert context["tokens"]["estimate"] <= context["tokens"]["target"]
    assert REQUEST in str(context["request"])


async def summarize_in_bulk(
    client: httpx.AsyncClient,
    database_url: str,
    model: Summarizers,
    name: str,
    window: int,
    count: int,
    above: int = REFUSED_ABOVE,
) -> list[Json]:
    model.default = refusing(above)
    agent = await begin_session(client, name, window)
    await post_rounds(agent, 0, count)
    async with running_worker(database_url, model), worker_queue(database_url) as done:
        await agent.context()  # drops events, since nothing is summarized yet
        await agent.context(wait_ms=WAIT_MS)
        await done()
        check_context(await agent.context())
    check_requests(model, above)
    return await check_summaries(client)


async def test_a_turn_posted_in_bulk(
    client: httpx.AsyncClient, database_url: str, fake_summarizers: Summarizers
) -> None:
    made = await summarize_in_bulk(client, database_url, fake_summarizers, "timeline", 12_000, 700, above=20_000)
    assert any(size(asked) > 20_000 for asked in fake_summarizers.requests)
    assert any(is_prefix(asked) and "<previous-summary>" in asked.prompt for asked in fake_summarizers.requests)
    assert made[-1]["to_seq"] > 1_000


@pytest.mark.parametrize("name", ["threshold", "pipeline"])
async def test_a_turn_that_grows(
    client: httpx.AsyncClient, database_url: str, fake_summarizers: Summarizers, name: str
) -> None:
    """`pipeline` splits no turn while the newest two fit, and is covered too."""
    fake_summarizers.default = refusing(REFUSED_ABOVE)
    agent = await begin_session(client, name, 12_000)
    async with running_worker(database_url, fake_summarizers):
        for first in range(0, 180, 15):
            await post_rounds(agent, first, first + 15)
            context = await agent.context(wait_ms=WAIT_MS)
            assert not evicted_seqs(context, "dropped")
    check_context(context)
    check_requests(fake_summarizers, REFUSED_ABOVE)
    await check_summaries(client)


async def test_a_model_that_refuses_every_request_gets_none_twice_and_the_run_fails(
    client: httpx.AsyncClient, database_url: str, fake_summarizers: Summarizers
) -> None:
    """The policy allows no summary without the model, so events stay dropped."""
    fake_summarizers.default = refusing(0)
    agent = await begin_session(client, "timeline", 12_000)
    await post_rounds(agent, 0, 200)
    async with running_worker(database_url, fake_summarizers), worker_queue(database_url) as done:
        await agent.context()
        await done()
        context = await agent.context()
        await done()
        later = await agent.context()
    sizes = [size(asked) for asked in fake_summarizers.requests]
    assert len(sizes) > 3
    assert sizes == sorted(set(sizes), reverse=True)
    assert sizes[-1] >= 600
    run, *_ = (await client.get("/v1/sessions/s/compactions")).json()["items"]
    assert (run["state"], await summaries(client)) == ("failed", [])
    assert "exceeds the context window" in run["error"]
    for one in (context, later):
        assert evicted_seqs(one, "dropped")
        assert one["compaction"]["state"] == "stalled"
        assert "the last compaction failed" in one["compaction"]["reason"]


async def test_a_span_the_model_refuses_in_every_size_is_summarized_without_it(
    client: httpx.AsyncClient, database_url: str, fake_summarizers: Summarizers
) -> None:
    fake_summarizers.default = refusing(0)
    agent = await begin_session(client, "timeline", 12_000, on_fail="extractive")
    await post_rounds(agent, 0, 200)
    async with running_worker(database_url, fake_summarizers), worker_queue(database_url) as done:
        dropping = await agent.context()
        await done()
        context = await agent.context()
    assert evicted_seqs(dropping, "dropped")
    check_context(context)  # the dropped events are now summarized
    assert context["compaction"] == {"state": "none", "reason": None}
    [made] = await summaries(client)
    assert (made["summarizer"], made["degraded"], made["split_turn"]) == ("extractive", True, 1)
    assert REQUEST in made["text"]
    run, *_ = (await client.get("/v1/sessions/s/compactions")).json()["items"]
    assert (run["state"], "exceeds the context window" in run["error"]) == ("succeeded", True)


@pytest.mark.parametrize("name", ["timeline", pytest.param("default", marks=pytest.mark.slow)])
async def test_later_user_messages_of_a_turn_are_in_its_summaries_too(
    client: httpx.AsyncClient, database_url: str, fake_summarizers: Summarizers, name: str
) -> None:
    """The first and the newest of many messages are in the summaries, also in a fork."""
    agent = await Agent.begin(client, {**(await preset(client, name)), "window_tokens": 12_000})
    await agent.user("An earlier question about nothing in particular.")
    await agent.user(REQUEST, turn_id="t")
    for number in range(8):
        await post_rounds(agent, 60 * number, 60 * number + 60)
        await agent.user(f"Addition {number} is about the harbour of that number.", turn_id="t")
    await post_rounds(agent, 480, 560)
    fork = (await client.post("/v1/sessions/s/fork", json={"at": 1_000, "id": "f"})).json()
    forked = Agent(client, fork["id"])
    await forked.post(*({**event, "call_id": f"f{event['call_id']}"} for event in rounds(600, 700)))
    async with running_worker(database_url, fake_summarizers), worker_queue(database_url) as done:
        for one in (agent, forked):
            await one.context()
            await one.context(wait_ms=WAIT_MS)
        await done()
    for asked in fake_summarizers.requests:
        assert REQUEST in asked.prompt or "An earlier question" in asked.prompt, asked.prompt[:2_000]
    for session in ("s", "f"):
        items = (await client.get(f"/v1/sessions/{session}/summaries")).json()["items"]
        texts = [(await client.get(f"/v1/sessions/{session}/summaries/{row['id']}")).json()["text"] for row in items]
        assert texts and all(REQUEST in text for text in texts)
        assert any("Addition 7 is about" in text for text in texts)
        assert not any(all(f"Addition {number} is" in text for number in range(8)) for text in texts)


@pytest.mark.parametrize(("name", "window"), EACH_AND_ALL)
async def test_two_thousand_rounds_in_bulk(
    client: httpx.AsyncClient, database_url: str, fake_summarizers: Summarizers, name: str, window: int
) -> None:
    await summarize_in_bulk(client, database_url, fake_summarizers, name, window, ROUNDS)


@pytest.mark.parametrize(("name", "window"), EACH_AND_ALL)
async def test_two_thousand_rounds_call_by_call(
    client: httpx.AsyncClient, database_url: str, fake_summarizers: Summarizers, name: str, window: int
) -> None:
    fake_summarizers.default = refusing(REFUSED_ABOVE)
    agent = await begin_session(client, name, window)
    step = min(ROUNDS // CALLS, window // 1_000)
    async with running_worker(database_url, fake_summarizers):
        for first in range(0, ROUNDS, step):
            await post_rounds(agent, first, min(ROUNDS, first + step))
            context = await agent.context(wait_ms=WAIT_MS)
            assert not evicted_seqs(context, "dropped"), first
    check_context(context)
    check_requests(fake_summarizers, REFUSED_ABOVE)
    await check_summaries(client)
