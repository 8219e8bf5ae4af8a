"""S3: batches of the oldest messages, under the preset `clip` (the rows about thresholds and cuts)."""

import httpx

from tests.conformance.agent import WAIT_MS, Agent, evicted_seqs, until_folded

TEXT = "word " * 80


async def test_s3_01_above_eight_tenths_by_four_characters_a_token(client: httpx.AsyncClient, worker: None) -> None:
    agent = await Agent.begin(client, "clip", max_tokens=4_000)
    before, context = await until_folded(agent, lambda _: agent.user(TEXT))
    assert context["tokens"]["estimator"] == "ceil4"
    assert before["tokens"]["estimate"] <= 3_200 < before["tokens"]["estimate"] + len(TEXT) // 4 + 10
    assert context["tokens"]["estimate"] <= 3_200


async def test_s3_02_the_newest_five_are_kept(client: httpx.AsyncClient, worker: None) -> None:
    """Five messages take more than the goal of a reduction, so that each time all others are summarized."""
    agent = await Agent.begin(client, "clip", max_tokens=4_200)
    _, context = await until_folded(agent, lambda _: agent.user(TEXT * 5))
    assert evicted_seqs(context, "summarized") == set(range(1, context["head"] - 4))
    for _ in range(12):
        await agent.user(TEXT * 5)
        context = await agent.context(wait_ms=WAIT_MS)
        assert context["tokens"]["estimate"] <= 3_360
        assert not evicted_seqs(context, "dropped")
        behind = set(range(context["head"] - 4, context["head"] + 1))
        assert behind.isdisjoint(evicted_seqs(context, "summarized"))


async def test_s3_02_too_few_messages_change_nothing(client: httpx.AsyncClient) -> None:
    agent = await Agent.begin(client, "clip", max_tokens=100_000)
    for _ in range(3):
        await agent.user()
    context = await agent.context(force=True)
    assert (context["evictions"], context["epoch"]) == ([], 1)


async def test_s3_02_a_call_and_its_results_stay_together(client: httpx.AsyncClient, worker: None) -> None:
    agent = await Agent.begin(client, "clip", max_tokens=4_000, format="openai")
    for _ in range(2):
        await agent.user(TEXT * 6)
    result = await agent.calls(result=TEXT * 6)
    await agent.context()
    _, context = await until_folded(agent, lambda _: agent.user(TEXT * 4), most=4)
    assert context["head"] == result + 4  # the fifth newest is the result: its call stays with it
    assert evicted_seqs(context, "summarized") == set(range(1, result - 1))
    assert [message["role"] for message in context["request"]["messages"]][1:3] == ["assistant", "tool"]
