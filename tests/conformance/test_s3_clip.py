"""S3: batches of the oldest messages, under the preset `clip` (the rows about thresholds and cuts)."""

import httpx

from tests.conformance.agent import Agent, evicted

TEXT = "word " * 80


async def test_s3_01_above_eight_tenths_by_four_characters_a_token(client: httpx.AsyncClient) -> None:
    agent = await Agent.begin(client, "clip", max_tokens=4_000)
    for _ in range(60):
        await agent.user(TEXT)
        context = await agent.context()
        if context["evictions"]:
            break
        assert context["tokens"]["estimate"] <= 3_200
        last = context["tokens"]["estimate"]
    assert context["evictions"]
    assert last + len(TEXT) // 4 + 10 > 3_200
    assert context["tokens"]["estimator"] == "ceil4"


async def test_s3_02_the_newest_five_are_kept(client: httpx.AsyncClient) -> None:
    agent = await Agent.begin(client, "clip", max_tokens=100_000)
    for _ in range(5):
        await agent.user()
        await agent.says()
    context = await agent.context(force=True)
    assert evicted(context, "dropped") == {1, 2, 3, 4, 5}


async def test_s3_02_fewer_than_that_change_nothing(client: httpx.AsyncClient) -> None:
    agent = await Agent.begin(client, "clip", max_tokens=100_000)
    for _ in range(3):
        await agent.user()
    context = await agent.context(force=True)
    assert (context["evictions"], context["epoch"]) == ([], 1)


async def test_s3_02_a_call_and_its_results_stay_together(client: httpx.AsyncClient) -> None:
    agent = await Agent.begin(client, "clip", max_tokens=100_000, format="openai")
    for _ in range(4):
        await agent.user()
    first = await agent.calls()
    for _ in range(4):
        await agent.user()
    context = await agent.context(force=True)  # the fifth newest is the result: its call stays with it
    assert first - 1 not in evicted(context, "dropped")
    assert evicted(context, "dropped") == {1, 2, 3, 4}
    assert [message["role"] for message in context["request"]["messages"]][1:3] == ["assistant", "tool"]
