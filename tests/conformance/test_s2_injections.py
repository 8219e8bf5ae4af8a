"""S2: content that hooks inject, with a target that does not include it, under the preset `pipeline`."""

import json
from typing import Any

import httpx
import pytest

from app.core.policy.policy import DOCUMENTS
from tests.conformance.agent import Agent, Json

TEXT = "word " * 80


def pipeline(**other: Any) -> Json:
    """Return the preset's document with changed settings."""
    document: Json = json.loads(json.dumps(DOCUMENTS["pipeline"]))
    return {**document, "reserve_tokens": 0, **other}


async def test_s2_02_reduction_never_sees_what_is_injected(client: httpx.AsyncClient) -> None:
    """Turn by turn to the target and past it, a hook that fills its reserve changes no eviction."""
    policy = pipeline(injection_reserve_tokens=1_000, evict="on_pressure", dialogue_window={"turns": None})
    plain = await Agent.begin(client, policy, "plain", max_tokens=6_000)
    hooked = await Agent.begin(client, policy, "hooked", max_tokens=6_000)
    hook = [{"name": "hook", "content": "word " * 760}]
    tight = 0
    for turn in range(60):
        contexts = []
        for agent, injections in ((plain, []), (hooked, hook)):
            await agent.user(f"turn-{turn}. {TEXT}")
            contexts.append(await agent.context(injections=injections))
        without, hooked_context = contexts
        assert hooked_context["evictions"] == without["evictions"]
        assert hooked_context["epoch"] == without["epoch"]
        assert hooked_context["request"]["messages"][:-1] == without["request"]["messages"]
        injected = hooked_context["tokens"]["estimate"] - without["tokens"]["estimate"]
        assert 900 < injected <= 1_000
        assert (
            hooked_context["tokens"]["by_source"]["ephemeral"] - without["tokens"]["by_source"]["ephemeral"] == injected
        )
        assert sum(hooked_context["tokens"]["by_source"].values()) == hooked_context["tokens"]["estimate"]
        assert without["tokens"]["estimate"] <= without["tokens"]["target"]
        assert hooked_context["tokens"]["estimate"] <= hooked_context["tokens"]["limit"]
        tight += hooked_context["tokens"]["estimate"] > hooked_context["tokens"]["target"]
    assert without["evictions"]
    assert tight  # reduction would have started here had it counted the injection


@pytest.mark.wing("audit")
async def test_s2_03_each_within_its_own_ceiling_and_all_within_the_reserve(client: httpx.AsyncClient) -> None:
    agent = await Agent.begin(client, pipeline(injection_reserve_tokens=100), max_tokens=30_000)
    await agent.user()
    problem = await agent.context(422, injections=[{"name": "own", "content": "word " * 40, "max_tokens": 20}])
    assert (problem["type"], problem["name"], problem["reserve"]) == ("/problems/injection-over-reserve", "own", 20)
    assert problem["tokens"] > 20
    assert "'own'" in problem["detail"]
    both = [{"name": "first", "content": "word " * 50}, {"name": "second", "content": "word " * 50}]
    for one in both:
        await agent.context(injections=[one])
    problem = await agent.context(422, injections=both)  # cumulative: the second one exceeds the reserve
    assert (problem["name"], problem["reserve"]) == ("second", 100)
    calls = (await client.get("/v1/sessions/s/calls")).json()["items"]
    assert len(calls) == 2  # a refused request is no call


async def test_s2_03_without_a_reserve_nothing_may_be_injected(client: httpx.AsyncClient) -> None:
    agent = await Agent.begin(client, pipeline(injection_reserve_tokens=0), max_tokens=30_000)
    await agent.user()
    problem = await agent.context(422, injections=[{"name": "hook", "content": "x"}])
    assert (problem["name"], problem["reserve"]) == ("hook", 0)


@pytest.mark.parametrize("form", ["openai", "openai-responses", "anthropic", "blocks"])
@pytest.mark.parametrize("after_results", [False, True])
async def test_s2_04_beside_the_final_user_message(client: httpx.AsyncClient, form: str, after_results: bool) -> None:
    """Injections are parts of the last user message for alternating roles, otherwise messages after it.

    Either way no sent message changes when the injection is gone (I5).
    """
    agent = await Agent.begin(client, pipeline(injection_reserve_tokens=500), format=form, max_tokens=30_000)
    await agent.post({"type": "system.prompt", "content": "SYSTEM"})
    await agent.user("QUESTION")
    if after_results:
        await agent.calls(result="RESULT")
    bare = await agent.context()
    hooks = [{"name": "a", "content": "INJECTED-A"}, {"name": "b", "content": "INJECTED-B"}]
    context = await agent.context(injections=hooks)
    items = next(context["request"][name] for name in ("messages", "input", "blocks") if name in context["request"])
    before = next(bare["request"][name] for name in ("messages", "input", "blocks") if name in bare["request"])
    if form == "anthropic":
        assert [item["role"] for item in items] == [item["role"] for item in before]
        assert items[:-1] == before[:-1]
        parts = items[-1]["content"]
        assert [name in str(part) for name, part in zip("AB", parts[-2:], strict=True)] == [True, True]
        assert ("RESULT" if after_results else "QUESTION") in str(parts[0])
    else:
        assert items[: len(before)] == before
        assert [item.get("role", item.get("kind")) for item in items[-2:]] == (
            ["note"] if form == "blocks" else ["user"]
        ) * 2
        assert ["INJECTED-A" in str(items[-2]), "INJECTED-B" in str(items[-1])] == [True, True]
    assert context["cache"]["prefix_sha256"] == bare["cache"]["prefix_sha256"]


@pytest.mark.wing("audit")
async def test_s2_04_injections_are_in_the_record_and_not_in_the_log(client: httpx.AsyncClient) -> None:
    agent = await Agent.begin(client, pipeline(injection_reserve_tokens=500), max_tokens=30_000)
    await agent.user("QUESTION")
    context = await agent.context(injections=[{"name": "hook", "content": "INJECTED"}])
    manifest = (await client.get(f"/v1/sessions/s/calls/{context['call_id']}")).json()
    assert manifest["injections"] == [{"name": "hook", "chars": 8}]
    again = (await client.get(f"/v1/sessions/s/calls/{context['call_id']}/context")).json()
    assert (again["reproduced"], again["request"]) == (True, context["request"])
    assert "INJECTED" not in str(await agent.log())
    assert "INJECTED" not in str(await agent.context())
