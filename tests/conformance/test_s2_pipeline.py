"""S2: the reducer pipeline, under the preset `pipeline`."""

import json
from typing import Any

import httpx
import pytest

from app.core.policy.policy import DOCUMENTS
from tests.conformance.agent import BY_TURN, WAIT_MS, Agent, batches, evicted_seqs, request_text
from tests.conformance.conftest import compact
from tests.support.summarizers import Summarizers, ok

TEXT = "head line\n" + "word " * 100


def pipeline(**other: Any) -> dict[str, Any]:
    """Return the preset's document with changed values in some groups."""
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
    await agent.assistant("earlier")
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
    assert evicted_seqs(context, "stubbed") == {old}
    assert "new head line" in request_text(context)


async def test_s2_06_the_presets_age_is_six_turns(client: httpx.AsyncClient) -> None:
    agent = await Agent.begin(client, "pipeline")
    results = []
    for turn in range(9):
        await agent.user(f"turn {turn}")
        results.append(await agent.calls(result=f"result {turn} {TEXT}"))
    context = await agent.context()
    assert context["policy"] == {"name": "pipeline", "version": 1}
    assert evicted_seqs(context, "stubbed") & set(results) == set(results[:3])


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


@BY_TURN
@pytest.mark.parametrize("rules", [{"age_turns": 1}, {"age_turns": None, "keep_last": 1}], ids=["age", "count"])
async def test_s2_07_one_result_is_never_evicted_if_it_is_pinned(
    client: httpx.AsyncClient, worker: None, rules: dict[str, Any], by_turn: bool
) -> None:
    """Over ten windows, a result appended as pinned and one pinned later stay whole."""
    agent = await Agent.begin(client, {**pipeline(retention=rules), "window_tokens": 6_000}, format="blocks")
    pinned = {}
    turns = [
        [
            {"type": "user.message", "content": f"question-{turn}. {TEXT}"},
            {"type": "tool.call", "call_id": f"c{turn}", "tool": "read", "arguments": {}},
            {
                "type": "tool.result",
                "call_id": f"c{turn}",
                "content": f"result-{turn}. {TEXT * 3}",
                "pinned": turn == 2,
            },
        ]
        for turn in range(130)
    ]
    for events in (*batches(turns[:4], by_turn), [], *batches(turns[4:], by_turn)):
        if events:
            await agent.post(*events)
        else:
            asked = {"pin": [{"seq": 12}], "show": [{"seq": 12}]}
            pinned = (await client.patch("/v1/sessions/s/visibility", json=asked)).json()
        if by_turn:
            await agent.context()
    assert pinned["pinned"] == [12], pinned
    await compact(client)
    for view in ("main", "another"):
        context = await agent.context(view=view)
        results = [b["content"] for b in context["request"]["blocks"] if b["kind"] == "result" and TEXT in b["content"]]
        assert [text.split(".")[0] for text in results][:2] == ["result-2", "result-3"]
        assert not {9, 12} & {s for word in ("stubbed", "summarized", "dropped") for s in result_seqs(context, word)}
        assert {6, 15, 18} <= {s for word in ("summarized", "dropped") for s in evicted_seqs(context, word)}


def result_seqs(context: dict[str, Any], disposition: str) -> set[int]:
    """Return the seqs of tool results among the evictions of one disposition."""
    return {seq for seq in evicted_seqs(context, disposition) if seq % 3 == 0}


async def test_s2_08_a_stub_keeps_the_pair(client: httpx.AsyncClient) -> None:
    agent = await Agent.begin(client, pipeline(retention={"age_turns": 1}))
    await agent.user()
    await agent.calls(result=TEXT)
    await agent.user()
    messages = (await agent.context())["request"]["messages"]
    call = messages[1]["tool_calls"][0]
    assert (messages[2]["role"], messages[2]["tool_call_id"]) == ("tool", call["id"])
    assert "left out of this context" in messages[2]["content"]


async def test_s2_09_the_window_drops_the_oldest_turns_and_keeps_leading_events(client: httpx.AsyncClient) -> None:
    agent = await Agent.begin(client, pipeline(dialogue_window={"turns": 2}))
    await agent.assistant("LEADING")
    for turn in range(3):
        await agent.user(f"user {turn}")
        await agent.assistant(f"answer {turn}")
    seen = request_text(await agent.context())
    assert [f"user {turn}" in seen for turn in range(3)] == [False, True, True]
    assert "LEADING" in seen


async def test_s2_09_the_presets_window_is_forty_turns(client: httpx.AsyncClient) -> None:
    agent = await Agent.begin(client, "pipeline")
    for turn in range(42):
        await agent.user(f"user-{turn}.")
    seen = request_text(await agent.context())
    assert [f"user-{turn}." in seen for turn in range(3)] == [False, False, True]


async def test_s2_09_the_window_may_be_set_in_tokens(client: httpx.AsyncClient) -> None:
    agent = await Agent.begin(client, pipeline(dialogue_window={"turns": None, "tokens": 300}))
    for turn in range(6):
        await agent.user(f"user-{turn}. " + "word " * 80)
    seen = request_text(await agent.context())
    assert [f"user-{turn}." in seen for turn in range(6)] == [False, False, False, False, True, True]


@BY_TURN
@pytest.mark.parametrize("window", [{"turns": 5}, {"turns": None, "tokens": 2_000}], ids=["turns", "tokens"])
async def test_s2_09_in_a_long_session_too(
    client: httpx.AsyncClient, worker: None, window: dict[str, Any], by_turn: bool
) -> None:
    """Over ten windows, the oldest turns leave the dialogue window, and a summary covers them once it exists."""
    agent = await Agent.begin(client, {**pipeline(dialogue_window=window), "window_tokens": 6_000})
    turns = [[{"type": "user.message", "content": f"user-{n}. {TEXT * 3}"}] for n in range(180)]
    for events in batches(turns, by_turn):
        await agent.post(*events)
        if by_turn:
            context = await agent.context()
            assert 1 <= sum(f"user-{n}." in request_text(context) for n in range(180)) <= 5
    for view in ("main", "another"):
        context = await agent.context(view=view, wait_ms=WAIT_MS)
        seen = [f"user-{n}." in request_text(context) for n in range(180)]
        assert seen == sorted(seen) and 1 <= sum(seen) <= 5
    assert context["summaries"] or evicted_seqs(context, "dropped")


@pytest.mark.parametrize("evict", ["every_assembly", "on_pressure", "economic"])
async def test_s2_13_and_s2_20_a_cap_alone_evicts_results_while_the_whole_is_under_its_target(
    client: httpx.AsyncClient, evict: str
) -> None:
    """Without rules on age or number, only results over their own cap go, oldest first, and the dialogue stays."""
    bare = {"age_turns": None, "keep_last": None, "superseded": False}
    policy = {"evict": evict, "retention": bare, "dialogue_window": {}, "summarize": {"enabled": False}}
    policies = {"without": policy, "capped": {**policy, "caps": {"tool_results": 0.2}}}
    shown_by = {}
    for name, document in policies.items():
        agent = await Agent.begin(client, document, name, max_tokens=20_000, format="blocks")
        for turn in range(40):
            await agent.user(f"question-{turn}.")
            await agent.calls(result=f"result-{turn}. {TEXT}")
            await agent.assistant(f"answer-{turn}.")
            shown_by[name] = await agent.context()
        first = await agent.context(view="another")
        assert bool(evicted_seqs(first, "stubbed")) is (name == "capped")
    assert shown_by["without"]["evictions"] == []
    capped = shown_by["capped"]
    assert {(row["disposition"], row["reducer"], row["reason"]) for row in capped["evictions"]} == {
        ("stubbed", "caps", "over_the_cap_for_tool_results")
    }
    whole = [b for b in capped["request"]["blocks"] if b["kind"] == "result" and "left out" not in b["content"]]
    assert 0 < len(whole) * 140 <= 0.2 * capped["tokens"]["target"]
    assert whole[-1]["content"].startswith("result-39.")
    text = request_text(capped)
    assert all(f"{said}-{turn}." in text for turn in range(40) for said in ("question", "answer"))
    epochs = (await client.get("/v1/sessions/capped/epochs", params={"view": "main"})).json()["items"]
    assert {row["cause"] for row in epochs} == {"start", "cap"}
    assert len(epochs) < 12


async def long_session(client: httpx.AsyncClient, name: str, caps: dict[str, float], by_turn: bool) -> Agent:
    """Post more than ten windows of 8,000 tokens, turn by turn with a context after each, or in one append."""
    bare = {"age_turns": None, "keep_last": None, "superseded": False}
    document = pipeline(retention=bare, dialogue_window={"turns": None}, caps=caps)
    agent = await Agent.begin(client, {**document, "window_tokens": 8_000}, name, format="blocks")
    turns = [
        [
            {"type": "user.message", "content": f"question-{turn}. {TEXT * 3}"},
            {"type": "tool.call", "call_id": f"c{turn}", "tool": "read", "arguments": {}},
            {"type": "tool.result", "call_id": f"c{turn}", "content": f"result-{turn}."},
            {"type": "assistant.message", "content": f"answer-{turn}. {TEXT * 3}"},
        ]
        for turn in range(130)
    ]
    for events in batches(turns, by_turn):
        await agent.post(*events)
        if by_turn:
            assert (await agent.context())["tokens"]["estimate"] <= 8_000
    return agent


def tokens_of(context: dict[str, Any], *kinds: str) -> int:
    """Return the tokens of the blocks of these kinds by the context's estimator, without their wrapping."""
    blocks = [block for block in context["request"]["blocks"] if block["kind"] in kinds]
    return sum(len(str(block["content"]).encode()) // 4 for block in blocks)


@BY_TURN
async def test_s2_13_and_s2_20_dialogue_over_its_cap_goes_while_the_whole_is_under_its_target(
    client: httpx.AsyncClient, by_turn: bool
) -> None:
    agent = await long_session(client, "capped", {"dialogue": 0.3}, by_turn)
    for view in ("main", "another"):
        context = await agent.context(view=view)
        assert context["tokens"]["estimate"] <= 0.4 * context["tokens"]["target"]
        assert 0 < tokens_of(context, "user", "assistant") <= 0.3 * context["tokens"]["target"]
        assert "answer-129." in request_text(context) and "question-0." not in request_text(context)
        assert {"caps"} <= {row["reducer"] for row in context["evictions"]} <= {"caps", "last_resort"}
    assert not by_turn or {row["reducer"] for row in (await agent.context())["evictions"]} == {"caps"}
    epochs = (await client.get("/v1/sessions/capped/epochs", params={"view": "main", "limit": 1_000})).json()["items"]
    assert len(epochs) < 100


async def test_s2_13_and_s2_20_summaries_over_their_cap_are_shortened_while_the_whole_is_under_its_target(
    client: httpx.AsyncClient, worker: None, model: Summarizers
) -> None:
    headings = ("## Goal", "## Constraints & Preferences", "## Progress", "### Done", "### In Progress", "### Blocked")
    more = ("## Key Decisions", "## Next Steps", "## Critical Context")
    points = "\n".join(f"- They talked about thing {number}." for number in range(12))
    model.default = ok("\n".join(f"{heading}\n{points}" for heading in (*headings, *more)))
    taken = {}
    for name, caps in (("without", {}), ("capped", {"summaries": 0.05})):
        agent = await long_session(client, name, caps, by_turn=False)
        answer = await client.post(f"/v1/sessions/{name}/compactions", json={"wait_ms": WAIT_MS})
        assert answer.json()["state"] in ("succeeded", "skipped"), answer.text  # the worker may have been faster
        for view in ("main", "another"):
            context = await agent.context(view=view)
            assert [row["reducer"] for row in context["evictions"]] == ["fold"]
            assert "answer-129." in request_text(context)
            taken[name, view] = context["tokens"]["by_source"]["summaries"]
        again = await agent.context()
        assert again["epoch"] == (await agent.context())["epoch"]
    target = 0.05 * context["tokens"]["target"]
    assert max(taken["capped", view] for view in ("main", "another")) <= target
    assert min(taken["without", view] for view in ("main", "another")) > target


async def test_s2_13_without_a_cap_of_its_own_a_tier_falls_back_to_the_whole(
    client: httpx.AsyncClient, worker: None
) -> None:
    """Ten windows are posted before a new view's first context: results are covered by the fold of the whole."""
    agent = await Agent.begin(client, {**pipeline(retention={"age_turns": None}), "window_tokens": 4_000})
    for turn in range(200):
        await agent.post(
            {"type": "user.message", "content": f"question-{turn}."},
            {"type": "tool.call", "call_id": f"c{turn}", "tool": "read", "arguments": {}},
            {"type": "tool.result", "call_id": f"c{turn}", "content": f"result-{turn}. {TEXT * 2}"},
        )
    await compact(client)
    context = await agent.context()
    assert context["summaries"]
    assert {row["reducer"] for row in context["evictions"]} == {"fold"}


@pytest.mark.slow
async def test_s2_17_under_pressure_few_epochs_are_opened_and_between_two_the_request_only_grows(
    client: httpx.AsyncClient,
) -> None:
    """Without a worker, results expire by age and turns leave the window, both in steps."""
    agent = await Agent.begin(client, "pipeline", max_tokens=100_000, format="openai")
    before: dict[str, Any] = {}
    for turn in range(120):
        await agent.user(f"question-{turn}.")
        await agent.calls(result=f"result-{turn}. {TEXT}")
        await agent.assistant(f"answer-{turn}.")
        context = await agent.context()
        if before and context["epoch"] == before["epoch"]:
            sent = before["request"]["messages"]
            assert context["request"]["messages"][: len(sent)] == sent
        text = request_text(context)
        assert all(f"answer-{n}." in text for n in range(max(0, turn - 27), turn + 1))
        assert f"question-{turn - 40}." not in text
        before = context
    assert context["epoch"] <= 30


async def test_s2_18_openais_models_are_counted_by_their_tokenizer_and_others_by_the_heuristic(
    client: httpx.AsyncClient,
) -> None:
    found = {}
    for model in ("gpt-4o", "gpt-4", "openai/gpt-5-mini", "claude-sonnet-4-5", "llama-4", None):
        agent = await Agent.begin(client, "pipeline", (model or "none").replace("/", "-"), max_tokens=10_000)
        await agent.user("hello")
        tokens = (await agent.context(model=model))["tokens"]
        assert tokens["target"] < 9_000  # either estimator has a margin
        found[model] = tokens["estimator"]
    assert found == {
        "gpt-4o": "tiktoken:o200k_base",
        "gpt-4": "tiktoken:cl100k_base",
        "openai/gpt-5-mini": "tiktoken:o200k_base",
        "claude-sonnet-4-5": "bytes4+1",
        "llama-4": "bytes4+1",
        None: "bytes4+1",
    }


@pytest.mark.parametrize(("text", "tokens"), [("", 1), ("12345678", 3), ("word " * 400, 501)])
async def test_s2_14_estimates_are_conservative(client: httpx.AsyncClient, text: str, tokens: int) -> None:
    agent = await Agent.begin(client, "pipeline", max_tokens=30_000)
    await agent.user(text)
    context = await agent.context()
    assert context["tokens"]["estimator"] == "bytes4+1"
    assert context["tokens"]["by_source"]["current_turn"] >= tokens + 4  # plus a message's wrapping


async def test_s2_16_one_marker_behind_the_leading_system_prompt(client: httpx.AsyncClient) -> None:
    asks = {"format": "anthropic", "model": "claude-sonnet-4-5"}
    agent = await Agent.begin(client, "pipeline", **asks)
    await agent.post({"type": "system.prompt", "content": "rule " * 6_000})
    await agent.user("hello")
    first = await agent.context()
    assert [point["kind"] for point in first["cache"]["breakpoints"]] == ["system"]
    assert "cache_control" in first["request"]["system"][-1]
    await agent.assistant("hi")
    await agent.user("again")
    assert (await agent.context())["request"]["system"] == first["request"]["system"]
    bare = await Agent.begin(client, "pipeline", "bare", **asks)
    await bare.user("word " * 6_000)
    assert (await bare.context())["cache"]["breakpoints"] == []
