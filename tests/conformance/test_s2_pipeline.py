"""S2: the reducer pipeline, under the preset `pipeline`."""

import json
from typing import Any

import httpx
import pytest

from app.core.presets import DOCUMENTS
from tests.conformance.agent import Agent, evicted, shown

TEXT = "head line\n" + "word " * 100


def pipeline(**other: Any) -> dict[str, Any]:
    """The preset's document with other values in some groups."""
    document = json.loads(json.dumps(DOCUMENTS["pipeline"]))
    for group, values in other.items():
        document[group] = {**document.get(group, {}), **values} if isinstance(values, dict) else values
    return document


async def test_s2_01_the_log_is_never_changed(client: httpx.AsyncClient) -> None:
    agent = await Agent.begin(client, "pipeline", max_tokens=4_000)
    for turn in range(12):
        await agent.user(f"turn {turn}")
        await agent.calls(result=TEXT)
    before = await agent.log()
    assert (await agent.context())["evictions"]
    assert await agent.log() == before
    assert sum(event.get("content") == TEXT for event in before) == 12


async def test_s2_02_the_target_leaves_the_injection_reserve(client: httpx.AsyncClient) -> None:
    policy = pipeline(injection_reserve_tokens=4_000, reserve_tokens=0)
    agent = await Agent.begin(client, policy, max_tokens=30_000)
    await agent.user()
    context = await agent.context()
    assert context["tokens"]["target"] == int(26_000 / 1.05)
    injected = await agent.context(injections=[{"name": "clock", "content": "noon " * 50}])
    assert injected["tokens"]["target"] == context["tokens"]["target"]
    assert injected["evictions"] == context["evictions"]


async def test_s2_03_an_injection_over_the_reserve_is_refused_by_name(client: httpx.AsyncClient) -> None:
    agent = await Agent.begin(client, pipeline(injection_reserve_tokens=100), max_tokens=30_000)
    await agent.user()
    two = [{"name": "small", "content": "x"}, {"name": "large", "content": "word " * 400}]
    problem = await agent.context(422, injections=two)
    assert (problem["type"], problem["name"]) == ("/problems/injection-over-reserve", "large")


async def test_s2_04_system_then_the_tail_then_injections_at_the_users_message(client: httpx.AsyncClient) -> None:
    agent = await Agent.begin(client, pipeline(injection_reserve_tokens=500), max_tokens=30_000)
    await agent.post({"type": "system.prompt", "content": "SYSTEM"})
    await agent.says("earlier")
    await agent.user("QUESTION")
    context = await agent.context(injections=[{"name": "hook", "content": "INJECTED"}])
    roles = [message["role"] for message in context["request"]["messages"]]
    assert roles == ["system", "assistant", "user", "user"]
    assert "INJECTED" in context["request"]["messages"][-1]["content"]


async def test_s2_05_free_reducers_run_at_every_assembly_results_before_the_window(client: httpx.AsyncClient) -> None:
    agent = await Agent.begin(client, pipeline(retention={"age_turns": 1}, dialogue_window={"turns": 2}))
    await agent.user("first")
    await agent.calls(result=TEXT)
    await agent.user("second")
    await agent.calls(result=TEXT)
    small = await agent.context(max_tokens=100_000)  # far below its target
    assert {row["reducer"] for row in small["evictions"]} == {"retention"}
    await agent.user("third")
    later = await agent.context()
    assert [row["reducer"] for row in later["evictions"]] == ["dialogue_window", "retention"]
    assert later["epoch"] == small["epoch"] + 1


async def test_s2_06_results_expire_by_age_in_turns(client: httpx.AsyncClient) -> None:
    agent = await Agent.begin(client, pipeline(retention={"age_turns": 1}))
    await agent.user("one")
    old = await agent.calls(result="old " + TEXT)
    await agent.user("two")
    await agent.calls(result="new " + TEXT)
    context = await agent.context()
    assert len(context["request"]["messages"]) == 6
    assert evicted(context, "stubbed") == {old}
    assert "new head line" in shown(context)


async def test_s2_06_the_presets_age_is_six_turns(client: httpx.AsyncClient) -> None:
    agent = await Agent.begin(client, "pipeline")
    results = []
    for turn in range(9):
        await agent.user(f"turn {turn}")
        results.append(await agent.calls(result=f"result {turn} {TEXT}"))
    context = await agent.context()
    assert context["policy"] == {"name": "pipeline", "version": 1}
    assert evicted(context, "stubbed") & set(results) == set(results[:3])


async def test_s2_07_count_per_tool_overrides_and_protection(client: httpx.AsyncClient) -> None:
    rules = {"age_turns": None, "keep_last": 2, "per_tool": True}
    rules |= {"tools": {"grep": {"keep_last": 1}}, "never_evict": ["plan"]}
    agent = await Agent.begin(client, pipeline(retention=rules))
    await agent.user()
    kept, gone = set(), set()
    for tool, keep in (("read", 2), ("grep", 1), ("plan", 4)):
        seqs = [await agent.calls(tool, TEXT) for _ in range(4)]
        kept |= set(seqs[4 - keep :])
        gone |= set(seqs[: 4 - keep])
    context = await agent.context(format="blocks")
    stubs = {block["seq"] for block in context["request"]["blocks"] if "left out of this context" in str(block)}
    assert stubs == gone
    assert not stubs & kept


async def test_s2_08_a_stub_keeps_the_pair(client: httpx.AsyncClient) -> None:
    agent = await Agent.begin(client, pipeline(retention={"age_turns": 1}))
    await agent.user()
    await agent.calls(result=TEXT)
    await agent.user()
    messages = (await agent.context())["request"]["messages"]
    call = messages[1]["tool_calls"][0]
    assert (messages[2]["role"], messages[2]["tool_call_id"]) == ("tool", call["id"])
    assert "left out of this context" in messages[2]["content"]


async def test_s2_09_the_window_drops_the_oldest_turns_and_keeps_what_leads(client: httpx.AsyncClient) -> None:
    agent = await Agent.begin(client, pipeline(dialogue_window={"turns": 2}))
    await agent.says("LEADING")
    for turn in range(3):
        await agent.user(f"user {turn}")
        await agent.says(f"answer {turn}")
    seen = shown(await agent.context())
    assert [f"user {turn}" in seen for turn in range(3)] == [False, True, True]
    assert "LEADING" in seen


async def test_s2_09_the_presets_window_is_forty_turns(client: httpx.AsyncClient) -> None:
    agent = await Agent.begin(client, "pipeline")
    for turn in range(42):
        await agent.user(f"user-{turn}.")
    seen = shown(await agent.context())
    assert [f"user-{turn}." in seen for turn in range(3)] == [False, False, True]


async def test_s2_09_or_of_tokens(client: httpx.AsyncClient) -> None:
    agent = await Agent.begin(client, pipeline(dialogue_window={"turns": None, "tokens": 300}))
    for turn in range(6):
        await agent.user(f"user-{turn}. " + "word " * 80)
    seen = shown(await agent.context())
    assert [f"user-{turn}." in seen for turn in range(6)] == [False, False, False, False, True, True]


async def test_s2_13_caps_by_tier_fall_back_to_the_whole(client: httpx.AsyncClient) -> None:
    policy = pipeline(retention={"age_turns": None, "keep_last": 1}, evict="on_pressure")
    without = await Agent.begin(client, policy, "without", max_tokens=20_000)
    capped = await Agent.begin(
        client, {**policy, "evict": "every_assembly", "caps": {"tool_results": 0.1}}, "capped", max_tokens=20_000
    )
    for agent in (without, capped):
        await agent.user()
        for _ in range(30):
            await agent.calls(result=TEXT)
    assert (await without.context())["evictions"] == []
    context = await capped.context()
    assert context["evictions"]
    assert context["tokens"]["estimate"] < context["tokens"]["target"] // 2


@pytest.mark.parametrize(("text", "tokens"), [("", 1), ("12345678", 3)])
async def test_s2_14_estimates_are_conservative(client: httpx.AsyncClient, text: str, tokens: int) -> None:
    agent = await Agent.begin(client, "pipeline", max_tokens=30_000)
    await agent.user("12345678")
    context = await agent.context()
    assert context["tokens"]["estimator"] == "bytes4+1"
    by_rule = len(b"12345678") // 4 + 1
    assert context["tokens"]["by_source"]["current_turn"] >= by_rule
    assert len(text.encode()) // 4 + 1 == tokens


async def test_s2_16_one_marker_behind_the_leading_system_prompt(client: httpx.AsyncClient) -> None:
    asks = {"format": "anthropic", "model": "claude-sonnet-4-5"}
    agent = await Agent.begin(client, "pipeline", **asks)
    await agent.post({"type": "system.prompt", "content": "rule " * 6_000})
    await agent.user("hello")
    first = await agent.context()
    assert [point["kind"] for point in first["cache"]["breakpoints"]] == ["system"]
    assert "cache_control" in first["request"]["system"][-1]
    await agent.says("hi")
    await agent.user("again")
    assert (await agent.context())["request"]["system"] == first["request"]["system"]
    bare = await Agent.begin(client, "pipeline", "bare", **asks)
    await bare.user("word " * 6_000)
    assert (await bare.context())["cache"]["breakpoints"] == []
