"""S4: a reserve and a cut by the window's size, under the preset `threshold` (thresholds, estimates and cuts)."""

import httpx
import pytest

from tests.conformance.agent import WAIT_MS, Agent, Json, evicted_seqs, until_folded
from tests.conformance.conftest import check_coverage, preset
from tests.conformance.test_s0_overflow import report_outcome
from tests.support.summarizers import ReceivedRequest, Summarizers, a_summary, ok

TEXT = "word " * 80


async def append_until_evicted(agent: Agent, limit: int, text: str = TEXT) -> tuple[int, Json]:
    """Append messages until something is left out; return the last estimate before that, and the context."""
    last = 0
    for turn in range(limit):
        await agent.user(f"turn {turn} {text}")
        context = await agent.context()
        if context["evictions"]:
            return last, context
        last = context["tokens"]["estimate"]
    raise AssertionError("nothing was ever left out")


@pytest.mark.parametrize(("window", "threshold", "keep"), [(8_000, 5_952, 4_096), (12_000, 9_000, 4_200)])
async def test_s4_01_and_s4_02_above_the_window_less_the_reserve(
    client: httpx.AsyncClient, worker: None, window: int, threshold: int, keep: int
) -> None:
    agent = await Agent.begin(client, "threshold", max_tokens=window)
    before, context = await until_folded(agent, lambda turn: agent.user(f"turn {turn} {TEXT}"))
    assert before["tokens"]["estimate"] <= threshold < before["tokens"]["estimate"] + 130
    assert context["tokens"]["estimator"] == "chars4min1"
    kept = context["tokens"]["by_source"]["history"] + context["tokens"]["by_source"]["current_turn"]
    assert keep <= kept <= max(keep + 230, int(threshold * 0.7))


@pytest.mark.parametrize("window", [4_000, *(pytest.param(n, marks=pytest.mark.slow) for n in (6_000, 8_000))])
async def test_s4_02_a_summary_takes_four_fifths_of_the_reserve_in_small_windows_too(
    client: httpx.AsyncClient, worker: None, model: Summarizers, window: int
) -> None:
    """The model gets four fifths of the 1,638 tokens for prose; the rest is for the extracted lists."""
    model.default = ok(long_summary)
    agent = await Agent.begin(client, "threshold", max_tokens=window)
    turns = 10 * window // 110 // 5
    for turn in range(turns):
        await agent.post(*({"type": "user.message", "content": f"turn {turn}.{n} {TEXT}"} for n in range(5)))
        context = await agent.context(wait_ms=WAIT_MS)
        assert context["tokens"]["estimate"] <= context["tokens"]["target"]
        if context["summaries"]:
            assert not evicted_seqs(context, "dropped")
    assert {asked.max_tokens for asked in model.requests} == {1_310}
    assert context["tokens"]["by_source"]["summaries"] > 1_150
    fresh = await agent.context(view="fresh", wait_ms=WAIT_MS)
    assert fresh["tokens"]["by_source"]["summaries"] > 1_150
    await check_coverage(client)


def long_summary(asked: ReceivedRequest) -> str:
    """Return a summary of nearly the allowed size, at four characters per token."""
    return a_summary(asked) + "\n- " + "very long " * 470


async def test_s4_02_if_everything_below_the_threshold_is_kept_the_view_stalls_without_thrashing(
    client: httpx.AsyncClient,
) -> None:
    agent = await Agent.begin(client, "threshold", max_tokens=4_000)  # reserve 2,048 and keep 1,952: no room to gain
    states = []
    for _ in range(34):
        await agent.user(TEXT)
        context = await agent.context()
        states.append((context["compaction"]["state"], context["epoch"]))
        if context["compaction"]["state"] == "stalled":
            assert "above the trigger" in context["compaction"]["reason"]
    assert "stalled" in {state for state, _ in states}
    assert states[-1][1] <= 5


async def test_s4_04_four_characters_a_token(client: httpx.AsyncClient) -> None:
    agent = await Agent.begin(client, "threshold", max_tokens=8_000)
    await agent.user("x" * 400)
    one = (await agent.context())["tokens"]["estimate"]
    await agent.user("x" * 400)
    assert (await agent.context())["tokens"]["estimate"] - one == 100 + 4  # plus a message's wrapping


async def test_s4_06_checked_at_every_call_also_inside_a_turn(client: httpx.AsyncClient, worker: None) -> None:
    agent = await Agent.begin(client, "threshold", max_tokens=8_000)
    await agent.user("one turn")
    _, context = await until_folded(agent, lambda _: agent.calls(result=TEXT))
    for _ in range(30):
        assert context["tokens"]["estimate"] <= 5_952
        assert not evicted_seqs(context, "dropped")
        await agent.calls(result=TEXT)
        context = await agent.context(wait_ms=WAIT_MS)


async def test_s4_06_a_sub_agent_skips_only_the_threshold(client: httpx.AsyncClient, worker: None) -> None:
    """A sub-agent uses the preset without its `trigger`, in a view of its own or in another session."""
    agent = await Agent.begin(client, "threshold", max_tokens=8_000, format="openai")
    await until_folded(agent, lambda turn: agent.user(f"turn {turn} {TEXT}"))
    free = {**await preset(client, "threshold"), "trigger": {}}
    sub = {"view": "sub", "policy": free, "wait_ms": WAIT_MS}
    context = await agent.context(**sub)
    assert 5_952 < context["tokens"]["estimate"] <= context["tokens"]["target"]
    assert context["evictions"] == []
    assert context["compaction"]["state"] != "stalled"
    verdict = await report_outcome(client, context, {"error": {"message": "prompt is too long"}})
    again = await agent.context(**{**sub, **verdict["next"]["body"], "wait_ms": 0})
    assert again["tokens"]["estimate"] < context["tokens"]["estimate"]
    assert evicted_seqs(again, "summarized")
    for turn in range(40):  # the target still applies
        await agent.user(f"later {turn} {TEXT}")
        context = await agent.context(**sub)
        assert context["tokens"]["estimate"] <= context["tokens"]["target"]
    assert not evicted_seqs(context, "dropped")


async def test_s4_08_the_cut_never_falls_on_a_result(client: httpx.AsyncClient) -> None:
    agent = await Agent.begin(client, "threshold", max_tokens=8_000, format="blocks")
    results = []
    for _ in range(20):
        await agent.user("next")
        results.append(await agent.calls(result=TEXT * 4))
        context = await agent.context()
        if context["evictions"]:
            break
    gone = evicted_seqs(context, "dropped")
    assert gone
    assert all((seq in gone) == (seq - 1 in gone) for seq in results)
    first = next(block for block in context["request"]["blocks"] if block["kind"] != "note")
    assert first["kind"] != "result"


async def test_s4_09_nothing_to_compact_is_no_error(client: httpx.AsyncClient) -> None:
    agent = await Agent.begin(client, "threshold", max_tokens=8_000)
    await agent.user("small")
    context = await agent.context(force=True)
    assert (context["evictions"], context["compaction"]["state"]) == ([], "none")


async def test_s4_16_what_is_kept_is_preceded_by_what_stands_for_the_rest(client: httpx.AsyncClient) -> None:
    agent = await Agent.begin(client, "threshold", max_tokens=8_000)
    _, context = await append_until_evicted(agent, 200)
    first = context["request"]["messages"][0]
    assert first["role"] == "user"
    assert "Left out of this context" in first["content"]
