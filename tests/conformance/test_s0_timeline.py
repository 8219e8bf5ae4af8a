"""S0 and S1: the timeline, under the preset `timeline`.

The rows about the content of summaries are in `test_s0_summaries.py`. Without a worker, dropped events leave a note.
"""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from tests.conformance.agent import BY_TURN, WAIT_MS, Agent, Json, batches, evicted_seqs, request_text, until_folded
from tests.conformance.conftest import live_summary

TEXT = "word " * 80
START = datetime(2026, 1, 1, tzinfo=UTC)


def clock(seconds: float) -> str:
    return (START + timedelta(seconds=seconds)).isoformat()


async def filled(client: httpx.AsyncClient, window: int, *, over: bool, **asks: Any) -> tuple[Agent, Json]:
    """Fill a session with nine tenths of its window, or just more if `over`; return its last context."""
    agent = await Agent.begin(client, "timeline", max_tokens=window, **asks)
    context: Json = {}
    for turn in range(200):
        await agent.user(f"turn-{turn}. " + TEXT)
        before, context = context, await agent.context()
        if context["evictions"]:
            return agent, context if over else before
    raise AssertionError("it never outgrew its window")


async def test_s0_01_above_nine_tenths_of_the_window_and_not_before(client: httpx.AsyncClient, worker: None) -> None:
    agent = await Agent.begin(client, "timeline", max_tokens=4_000)
    before, context = await until_folded(agent, lambda turn: agent.user(f"turn-{turn}. {TEXT}"))
    assert context["tokens"]["estimator"] == "tiktoken:cl100k_base"
    assert context["tokens"]["estimate"] < before["tokens"]["estimate"] <= 3_600
    one_more = before["tokens"]["by_source"]["current_turn"]
    assert before["tokens"]["estimate"] + one_more > 3_600
    for turn in range(100, 140):  # later calls stay below the threshold too, and drop nothing
        await agent.user(f"turn-{turn}. {TEXT}")
        context = await agent.context(wait_ms=WAIT_MS)
        assert context["tokens"]["estimate"] <= 3_600
        assert not evicted_seqs(context, "dropped")


async def test_s0_01_what_nothing_stands_for_stays_until_the_target_itself_is_exceeded(
    client: httpx.AsyncClient,
) -> None:
    """Without a worker, raw events stay above the threshold, where the original would cut (I7): the view is stalled."""
    agent, last = await filled(client, 4_000, over=False)
    assert 3_600 < last["tokens"]["estimate"] <= last["tokens"]["target"]
    assert last["compaction"]["state"] == "stalled"
    await agent.user(TEXT)
    context = await agent.context()
    assert context["tokens"]["estimate"] <= context["tokens"]["target"]
    assert evicted_seqs(context, "dropped")


async def test_s0_02_force_does_not_ask_for_the_threshold(client: httpx.AsyncClient, worker: None) -> None:
    agent = await Agent.begin(client, "timeline", max_tokens=4_000)
    for turn in range(34):
        await agent.user(f"turn-{turn}. " + TEXT)
    plain = await agent.context()
    assert (plain["evictions"], plain["summaries"]) == ([], [])  # below the threshold
    forced = await agent.context(force=True, wait_ms=WAIT_MS)
    assert {(row["disposition"], row["reducer"]) for row in forced["evictions"]} == {("summarized", "fold")}
    assert (await agent.context())["sha256"] == forced["sha256"]


async def test_s0_02_force_drops_nothing_that_nothing_stands_for(client: httpx.AsyncClient) -> None:
    agent = await Agent.begin(client, "timeline", max_tokens=4_000)
    for turn in range(34):
        await agent.user(f"turn-{turn}. " + TEXT)
    assert (await agent.context(force=True))["evictions"] == []


async def test_s0_05_and_s0_28_the_cut_never_begins_with_a_result(client: httpx.AsyncClient) -> None:
    agent = await Agent.begin(client, "timeline", max_tokens=4_000, format="blocks")
    await agent.user("begin")
    for _ in range(40):
        await agent.calls(result=TEXT)
        context = await agent.context()
        if context["evictions"]:
            break
    kinds = [block["kind"] for block in context["request"]["blocks"] if block["kind"] != "note"]
    assert kinds[0] in ("user", "assistant", "call")
    assert context["evictions"]


async def test_s0_06_seven_tenths_of_what_the_prefix_leaves_are_kept(client: httpx.AsyncClient) -> None:
    agent = await Agent.begin(client, "timeline", max_tokens=4_000)
    await agent.post({"type": "system.prompt", "content": "rule " * 500})
    for turn in range(150):
        await agent.user(f"turn-{turn}. " + "word " * 20)
        context = await agent.context()
        if context["evictions"]:
            break
    assert context["evictions"]
    by_source = context["tokens"]["by_source"]
    kept = by_source["history"] + by_source["current_turn"]
    room = 4_000 - by_source["system"]
    assert 0.6 * room < kept < 0.8 * room


async def test_s0_06_or_the_newest_six_turns_if_they_take_more(client: httpx.AsyncClient, worker: None) -> None:
    agent = await Agent.begin(client, "timeline", max_tokens=4_000)
    for turn in range(8):
        await agent.user(f"turn-{turn}. " + "word " * 480)
        context = await agent.context(wait_ms=WAIT_MS)
    assert context["summaries"]
    seen = request_text(context)
    assert [f"turn-{n}." in seen for n in range(8)] == [False] * 2 + [True] * 6


@pytest.mark.parametrize("way", ["turns", "bulk"])
async def test_s0_06_the_last_resort_leaves_the_newest_six_turns_while_they_fit(
    client: httpx.AsyncClient, way: str
) -> None:
    """Without a worker and with a log of ten windows, older turns are dropped, however they were posted."""
    agent = await Agent.begin(client, "timeline", max_tokens=4_000)
    turns = [
        {"type": "user.message", "content": f"turn-{number}. " + "word " * (480 + number % 7 * 15)}
        for number in range(80)
    ]
    if way == "bulk":
        await agent.post(*turns[:60])
    seen = []
    for number in range(60 if way == "bulk" else 0, 80):
        await agent.post(turns[number])
        seen.append((number, await agent.context()))
    seen.append((79, await agent.context(view="another")))
    for number, context in seen:
        assert context["tokens"]["estimate"] <= context["tokens"]["target"]
        text = request_text(context)
        newest = range(max(0, number - 5), number + 1)
        assert [f"turn-{n}." in text for n in newest] == [True] * len(newest)
    assert evicted_seqs(seen[-1][1], "dropped")


async def test_s0_09_a_cut_may_split_a_turn(client: httpx.AsyncClient, worker: None) -> None:
    agent = await Agent.begin(client, "timeline", max_tokens=4_000)
    await agent.user("THE QUESTION")
    for number in range(30):
        await agent.assistant(f"said-{number}. " + TEXT)
    await agent.context()  # the newest six turns are always kept
    _, context = await until_folded(agent, lambda turn: agent.user(f"and then? {'word ' * 20}"))
    seen = request_text(context)
    assert (await live_summary(client))["split_turn"] == 1
    assert "said-0." not in seen
    assert "said-29." in seen


async def test_s0_09_the_running_turns_user_message_stays(client: httpx.AsyncClient) -> None:
    agent = await Agent.begin(client, "timeline", max_tokens=4_000)
    await agent.user("THE QUESTION")
    for number in range(60):
        await agent.assistant(f"said-{number}. " + TEXT)
        context = await agent.context()
    assert context["evictions"]
    assert "THE QUESTION" in request_text(context)


async def test_s0_15_and_s1_05_what_is_cut_stays_in_the_log(client: httpx.AsyncClient) -> None:
    agent, context = await filled(client, 4_000, over=True)
    gone = evicted_seqs(context, "dropped")
    log = await agent.log()
    assert [event["seq"] for event in log] == list(range(1, context["head"] + 1))
    assert all(TEXT in event["content"] for event in log if event["seq"] in gone)


@pytest.mark.parametrize(("idle", "pruned"), [(289, False), (290, True)])
async def test_s0_18_pruned_when_the_cache_is_cold(client: httpx.AsyncClient, idle: int, pruned: bool) -> None:
    agent = await Agent.begin(client, "timeline", max_tokens=100_000)
    for turn in range(12):
        await agent.user(f"turn {turn}")
        await agent.calls(result=TEXT * 4)
    await agent.context(now=clock(0))
    context = await agent.context(now=clock(idle))
    assert bool(evicted_seqs(context, "replaced")) == pruned
    epochs = (await client.get("/v1/sessions/s/epochs")).json()["items"]
    assert [row["cause"] for row in epochs] == ["start", "ttl"][: 1 + pruned]


async def test_s0_18_an_earlier_touch_keeps_it_fresh(client: httpx.AsyncClient) -> None:
    agent = await Agent.begin(client, "timeline", max_tokens=100_000)
    for turn in range(12):
        await agent.user(f"turn {turn}")
        await agent.calls(result=TEXT * 4)
    for seconds in (0, 200, 400, 600):
        assert (await agent.context(now=clock(seconds)))["evictions"] == []


async def test_s0_19_to_s0_21_by_the_age_of_the_turn(client: httpx.AsyncClient) -> None:
    agent = await Agent.begin(client, "timeline", max_tokens=200_000, recall=True)
    reads, searches = [], []
    for turn in range(13):
        await agent.user(f"turn {turn}")
        reads.append(await agent.calls("read", f"turn {turn}: " + TEXT * 4, {"path": f"{turn}.py"}))
        searches.append(await agent.calls("web_search", TEXT * 4))
    await agent.context(now=clock(0))
    context = await agent.context(now=clock(400))
    gone = evicted_seqs(context, "replaced")
    assert {seq for seq in reads if seq in gone} == set(reads[:3])  # ten turns are recent
    assert {seq for seq in searches if seq in gone} == set(searches[:11])  # two of them intact
    assert f'\\"recall_seq\\":{reads[0]}' in request_text(context)
    assert "...[truncated]" in request_text(context)


LARGE = {
    "field": "f" * 1_500,
    "short": "s" * 1_000,
    "ref": "ref:" + "r" * 3_000,
    "items": list(range(60)),
    "keys": {f"k{n}": n for n in range(100)},
    "inner": [{"text": "i" * 1_500}],
    "base64": "QUJD" * 900,
    "picture": {"data": "QUJD" * 1_100},
}
"""Values beyond each limit, and some just within."""


def assert_limited(fields: dict[str, Any]) -> None:
    """Assert that each kind of field of LARGE is cut by its own limit."""
    assert fields["field"] == "f" * 1_000 + "...[truncated]"
    assert fields["inner"] == [{"text": "i" * 1_000 + "...[truncated]"}]
    assert {name: fields[name] for name in ("short", "ref", "base64")} == {
        name: LARGE[name] for name in ("short", "ref", "base64")
    }
    assert (fields["items"][:50], fields["items"][50:]) == (list(range(50)), ["... (10 more)"])
    assert (len(fields["keys"]), "..." in fields["keys"]) == (81, True)
    assert fields["picture"]["data"].endswith("...[truncated]") and "QUJD" not in fields["picture"]["data"]


@pytest.mark.wing("audit")
@pytest.mark.wing("recall")
@pytest.mark.parametrize("recall", [True, False])
async def test_s0_20_limits_by_the_kind_of_field(client: httpx.AsyncClient, recall: bool) -> None:
    agent = await Agent.begin(client, "timeline", max_tokens=200_000, recall=recall)
    await agent.user("early")
    seq = await agent.calls("make", json.dumps(LARGE), LARGE)
    plain = await agent.calls("look", "p" * 2_000)
    small = await agent.calls("set", "ok", {"value": "s" * 900})
    for turn in range(60):
        await agent.user(f"turn {turn}")
        await agent.assistant(TEXT * 8)
    await agent.context(now=clock(0))
    context = await agent.context(now=clock(400))
    messages = context["request"]["messages"]
    calls = [call["function"] for message in messages for call in message.get("tool_calls", ())]
    results = {message["tool_call_id"]: message["content"] for message in messages if message["role"] == "tool"}
    arguments = json.loads(next(call["arguments"] for call in calls if call["name"] == "make"))
    assert_limited(arguments)
    assert arguments["truncated"] is True
    assert arguments.get("recall_seq") == (seq - 1 if recall else None)
    whole = json.loads(results["c1"])
    assert whole["truncated"] is True
    assert_limited(whole["result"])
    assert json.loads(results["c2"])["result"] == "p" * 400 + "...[truncated]"
    assert json.loads(next(call["arguments"] for call in calls if call["name"] == "set")) == {"value": "s" * 900}
    assert {seq, plain}.isdisjoint(evicted_seqs(context, "verbatim")) and small not in evicted_seqs(context, "replaced")
    again = (await client.get(f"/v1/sessions/s/calls/{context['call_id']}/context")).json()
    assert again["sha256"] == context["sha256"]
    assert (await agent.log())[seq - 2]["arguments"] == LARGE


async def test_s0_22_the_model_is_told_in_that_call(client: httpx.AsyncClient) -> None:
    agent = await Agent.begin(client, "timeline", max_tokens=200_000)
    for turn in range(12):
        await agent.user(f"turn {turn}")
        await agent.calls(result=TEXT * 4)
    await agent.context(now=clock(0))
    notice = "[SYSTEM MESSAGE] Context was pruned because the session TTL (300s) was exceeded"
    pruned = await agent.context(now=clock(400))
    assert notice in pruned["request"]["messages"][-1]["content"]
    assert notice not in request_text(await agent.context(now=clock(401)))


async def test_s0_23_replaced_events_stay_whole_in_the_log(client: httpx.AsyncClient) -> None:
    agent = await Agent.begin(client, "timeline", max_tokens=200_000)
    await agent.user("early")
    seq = await agent.calls(result="the original " + TEXT * 4)
    for turn in range(12):
        await agent.user(f"turn {turn}")
    await agent.context(now=clock(0))
    context = await agent.context(now=clock(400))
    assert seq in evicted_seqs(context, "replaced")
    assert (await agent.log())[seq - 1]["content"] == "the original " + TEXT * 4


async def test_s0_24_markers_behind_the_turn_before_a_round_and_the_tail(client: httpx.AsyncClient) -> None:
    asks = {"format": "anthropic", "model": "claude-sonnet-4-5", "max_tokens": 100_000}
    agent = await Agent.begin(client, "timeline", **asks)
    await agent.post({"type": "system.prompt", "content": "rule " * 4_000})
    await agent.user("one")
    previous = await agent.assistant("done")
    await agent.user("two")
    rounds = [await agent.calls(result=TEXT) for _ in range(7)]
    points = (await agent.context())["cache"]["breakpoints"]
    assert [(p["kind"], p["seq"]) for p in points] == [
        ("system", 1),
        ("previous_turn", previous),
        ("pre_tail", rounds[2]),
        ("tail", rounds[6]),
    ]


@BY_TURN
async def test_s0_26_the_last_block_is_marked_unless_a_call_says_that_none_follows(
    client: httpx.AsyncClient, by_turn: bool
) -> None:
    """Over ten windows, a call with `cache_last: false` reads the cache and writes nothing at its end."""
    asks = {"format": "anthropic", "model": "claude-sonnet-4-5", "max_tokens": 8_000}
    agent = await Agent.begin(client, "timeline", **asks)
    turns = [
        [
            {"type": "user.message", "content": f"u{n}. {TEXT}"},
            {"type": "assistant.message", "content": f"a{n}. {TEXT}"},
        ]
        for n in range(120)
    ]
    for events in batches(turns, by_turn):
        head = (await agent.post(*events))["head"]
        if by_turn:
            marked = (await agent.context())["cache"]["breakpoints"]
            assert (marked[-1]["kind"], marked[-1]["seq"]) == ("tail", head)
    for view in ("main", "another"):
        await agent.context(view=view)
        await agent.post({"type": "user.message", "content": f"one more for {view}"})
        last = await agent.context(view=view, cache_last=False)
        kinds = [point["kind"] for point in last["cache"]["breakpoints"]]
        assert kinds and "tail" not in kinds
        assert json.dumps(last["request"]).count("cache_control") == len(kinds)
        usual = await agent.context(view=view)
        assert usual["cache"]["breakpoints"][-1]["kind"] == "tail"
        assert usual["cache"]["prefix_sha256"] == last["cache"]["prefix_sha256"]


@pytest.mark.wing("audit")
async def test_s0_26_a_call_that_none_follows_is_rendered_again(client: httpx.AsyncClient) -> None:
    agent = await Agent.begin(client, "timeline", format="anthropic", model="claude-sonnet-4-5", max_tokens=8_000)
    for n in range(40):
        await agent.post(*({"type": kind, "content": f"{n}. {TEXT}"} for kind in ("user.message", "assistant.message")))
        await agent.context()
    for view in ("main", "another"):
        last = await agent.context(view=view, cache_last=False)
        again = (await client.get(f"/v1/sessions/s/calls/{last['call_id']}/context")).json()
        assert again["sha256"] == last["sha256"]


async def test_s0_24_also_below_the_providers_minimum(client: httpx.AsyncClient) -> None:
    asks = {"format": "anthropic", "model": "claude-haiku-4-5", "max_tokens": 100_000}
    agent = await Agent.begin(client, "timeline", **asks)
    await agent.user("word " * 1_000)
    assert (await agent.context())["cache"]["breakpoints"][-1]["kind"] == "tail"
    await agent.assistant("word " * 10_000)
    kinds = [point["kind"] for point in (await agent.context())["cache"]["breakpoints"]]
    assert kinds[-1] == "tail"


async def test_s1_02_what_is_injected_stands_behind_the_last_marker(client: httpx.AsyncClient) -> None:
    asks = {"format": "anthropic", "model": "claude-sonnet-4-5", "max_tokens": 100_000}
    agent = await Agent.begin(client, "timeline", **asks)
    await agent.user("word " * 4_000)
    plain = await agent.context()
    policy = {"injection_reserve_tokens": 500, "reserve_tokens": 0, "markers": "rounds", "trigger": {"ratio": 0.9}}
    injected = await agent.context(view="other", policy=policy, injections=[{"name": "sources", "content": "S"}])
    last = injected["request"]["messages"][-1]["content"]
    assert "S" in last[-1]["text"]
    assert "cache_control" not in last[-1]
    assert injected["cache"]["prefix_sha256"] == plain["cache"]["prefix_sha256"]
