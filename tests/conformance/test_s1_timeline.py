"""S1: events an agent contributes, announces and is shown during a turn, under the preset `timeline`.

The rows on recall (S1.7) and on summaries and overflow (S1.5, S1.6) have their own modules.
"""

import asyncio
import re
from typing import Any

import httpx
import pytest

from tests.conformance.agent import WAIT_MS, Agent, Json, evicted_seqs, request_text
from tests.conformance.conftest import check_coverage, compact, preset, summaries
from tests.support.summarizers import ReceivedRequest, Summarizers, a_summary, ok
from tests.unit.tokens.test_tokens import png

TEXT = "word " * 80
LAYERS = "/v1/sessions/s/layers"


async def show(client: httpx.AsyncClient, kind: str, content: Any) -> None:
    (await client.put(f"{LAYERS}/{kind}", json={"content": content})).raise_for_status()


async def test_s1_01_what_is_loaded_is_summaries_then_history_then_the_current_turn(
    client: httpx.AsyncClient, worker: None
) -> None:
    policy = await preset(client, "timeline")
    policy["cut"] |= {"keep_ratio": 0.3, "keep_recent_turns": 0}
    agent = await Agent.begin(client, policy, max_tokens=8_000)
    for turn in range(40):
        await agent.user(f"turn-{turn}. {TEXT}")
        await agent.assistant(f"answer-{turn}.")
    await agent.context()
    await compact(client)
    await agent.post({"type": "turn.start"}, {"type": "user.message", "content": "the current question"})
    context = await agent.context(force=True)
    assert len(context["summaries"]) == 1
    covered = context["summaries"][0]["to_seq"]
    head = context["head"]
    blocks = (await agent.context(format="blocks"))["request"]["blocks"]
    assert [block["seq"] for block in blocks] == [covered, *range(covered + 1, head - 1), head]
    assert all(context["tokens"]["by_source"][part] > 0 for part in ("summaries", "history", "current_turn"))
    assert {row["disposition"] for row in await check_coverage(client)} == {"summarized", "verbatim", "not_rendered"}
    same = await agent.context()
    assert (same["sha256"], same["epoch"]) == (context["sha256"], context["epoch"])


async def test_s1_02_sources_then_announce_behind_the_last_marker(client: httpx.AsyncClient) -> None:
    """Layers are off until they are put; a policy's `layers` may also leave sources out."""
    asks = {"format": "anthropic", "model": "claude-sonnet-4-5"}
    agent = await Agent.begin(client, "timeline", **asks)
    await agent.post({"type": "system.prompt", "content": "rule " * 6_000})
    await agent.user("history")
    await agent.assistant("answer")
    await agent.user("current")
    await agent.calls(result="progress")
    without = await agent.context()
    await show(client, "announce", "ANNOUNCED")
    await show(client, "sources", "SOURCED")
    context = await agent.context()
    parts = [part for message in context["request"]["messages"] for part in _parts(message)]
    places = [next(n for n, part in enumerate(parts) if text in str(part)) for text in ("current", "progress")]
    marked = [n for n, part in enumerate(parts) if "cache_control" in part]
    layers = [next(n for n, part in enumerate(parts) if text in str(part)) for text in ("SOURCED", "ANNOUNCED")]
    assert places == sorted(places)
    assert layers == [len(parts) - 2, len(parts) - 1]
    assert max(marked) == len(parts) - 3
    later = {"expires_at": context["cache"]["expires_at"]}
    assert context["cache"] == without["cache"] | later


def _parts(message: Json) -> list[Json]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


WINDOW = 4_000


def every_kind(turn: int) -> list[Json]:
    """Return a turn with an event of each conversation type."""
    call = f"c{turn}"
    return [
        {"type": "user.message", "content": f"question-{turn} {'word ' * 30}"},
        {"type": "agent.note", "content": f"note-{turn} {'word ' * 30}", "author": "planner"},
        {"type": "tool.call", "call_id": call, "tool": "look", "arguments": {"at": f"call-{turn} {'word ' * 30}"}},
        {"type": "tool.result", "call_id": call, "content": f"result-{turn} {'word ' * 30}"},
        {"type": "assistant.message", "content": f"answer-{turn} {'word ' * 30}"},
    ]


async def test_s1_03_what_is_contributed_is_there_in_the_next_turn(client: httpx.AsyncClient) -> None:
    """Logged events persist; content for one call or turn is injected or put as a layer."""
    agent = await Agent.begin(client, {**await preset(client, "timeline"), "injection_reserve_tokens": 500})
    await agent.user("one")
    await agent.post({"type": "agent.note", "content": "CONTRIBUTED", "author": "planner"})
    injected = await agent.context(injections=[{"name": "hook", "content": "PASSING"}])
    assert all(text in request_text(injected) for text in ("CONTRIBUTED", "PASSING"))
    await client.post("/v1/sessions/s/turns/end", json={})
    await agent.user("two")
    seen = request_text(await agent.context())
    assert ("CONTRIBUTED" in seen, "PASSING" in seen) == (True, False)
    note = (await agent.log())[1]
    assert (note["author"], note["turn"]) == ("planner", 1)
    assert note["created_at"]
    without = request_text(await agent.context(view="lead", policy={"authors": ["!planner"]}))
    assert "CONTRIBUTED" not in without


@pytest.mark.wing("audit")
@pytest.mark.parametrize(
    ("types", "gone"),
    [
        (["!agent.note"], {"note"}),
        (["!agent.note", "!tool.call"], {"note", "call", "result"}),
        (["user.message", "assistant.message"], {"note", "call", "result"}),
        (["user.message", "tool.call", "tool.result"], {"note", "answer"}),
        (["user.message", "tool.result"], {"note", "answer", "call", "result"}),
    ],
)
async def test_s1_03_types_are_shown_only_or_left_out(
    client: httpx.AsyncClient, worker: None, model: Summarizers, types: list[str], gone: set[str]
) -> None:
    """A call and its result are left out together. The log keeps all events, and another view shows them."""
    words = {"note", "call", "result", "answer", "question"}
    agent = await Agent.begin(client, {**await preset(client, "timeline"), "types": types}, max_tokens=WINDOW)
    for first in range(0, 120, 20):
        await agent.post(*(event for turn in range(first, first + 20) for event in every_kind(turn)))
        context = await agent.context(wait_ms=WAIT_MS)
        if context["summaries"]:
            assert not evicted_seqs(context, "dropped")
    assert context["summaries"]
    await check_coverage(client)
    for text in (request_text(context), "".join(asked.prompt for asked in model.requests)):
        assert {word for word in words if f"{word}-" in text} == words - gone
    again = (await client.get(f"/v1/sessions/s/calls/{context['call_id']}/context")).json()
    assert again["sha256"] == context["sha256"]
    other = request_text(await agent.context(view="other", policy={"types": None}, max_tokens=100_000))
    assert all(f"{word}-119" in other for word in words)
    fresh = request_text(await agent.context(view="fresh", policy={"types": types}, max_tokens=100_000))
    assert {word for word in words if f"{word}-119" in fresh} == words - gone
    assert len(await agent.log()) == 120 * 5


async def test_s1_04_announce_is_replaced_and_persisted_when_the_turn_ends(client: httpx.AsyncClient) -> None:
    """The announcement is logged before the turn's end and after the completion, since the log only grows."""
    agent = await Agent.begin(client, "timeline")
    await agent.post({"type": "turn.start"}, {"type": "user.message", "content": "one"})
    for step in range(3):
        await show(client, "announce", f"step {step}")
        seen = request_text(await agent.context())
        assert [f"step {n}" in seen for n in range(3)] == [n == step for n in range(3)]
    assert all("step" not in str(event.get("content")) for event in await agent.log())
    await agent.assistant("the completion")
    await client.post("/v1/sessions/s/turns/end", json={})
    assert [event["type"] for event in await agent.log()][2:] == ["assistant.message", "announce", "turn.end"]
    assert (await client.get(LAYERS)).json() == {"sources": None, "announce": None}
    await agent.post({"type": "turn.start"}, {"type": "user.message", "content": "two"})
    assert request_text(await agent.context()).count("step 2") == 1


async def test_s1_08_contributing_rendering_and_persisting_do_not_mix(client: httpx.AsyncClient) -> None:
    """One lock per session in the database: every context shows one state of the log, and no event is lost."""
    agent = await Agent.begin(client, "timeline")
    await agent.post({"type": "turn.start"}, {"type": "user.message", "content": "go on"})

    async def contribute(number: int) -> None:
        await agent.post(
            {"type": "agent.note", "content": f"note {number}."}, {"type": "agent.note", "content": "and."}
        )

    async def announce(number: int) -> None:
        await show(client, "announce", f"announce {number}.")

    answers = await asyncio.gather(
        *(contribute(number) for number in range(12)),
        *(announce(number) for number in range(6)),
        *(agent.context(format="blocks") for _ in range(12)),
    )
    log = await agent.log()
    assert [event["seq"] for event in log] == list(range(1, 27))
    pairs = [event["content"] for event in log[2:]]
    assert pairs[1::2] == ["and."] * 12
    assert sorted(pairs[::2]) == sorted(f"note {number}." for number in range(12))
    for context in answers[18:]:
        blocks = [block for block in context["request"]["blocks"] if "announce" not in block["content"]]
        assert [block["content"] for block in blocks] == [event["content"] for event in log[1 : context["head"]]]
        assert (context["head"] - 2) % 2 == 0
    await client.post("/v1/sessions/s/turns/end", json={})
    assert [event["type"] for event in await agent.log()][26:] == ["announce", "turn.end"]


async def test_s1_09_what_a_user_attaches_stays_with_the_message_is_counted_and_goes_with_it(
    client: httpx.AsyncClient, worker: None
) -> None:
    agent = await Agent.begin(client, "timeline", max_tokens=6_000, format="openai")
    url = f"data:image/png;base64,{png(800, 600)}"
    await agent.user("before")
    plain = (await agent.context())["tokens"]["by_source"]["current_turn"]
    parts = [{"type": "text", "text": "ATTACHED"}, {"type": "image_url", "image_url": {"url": url}}]
    seq = (await agent.post({"type": "user.message", "content": parts}))["head"]
    context = await agent.context()
    message = context["request"]["messages"][-1]
    assert ["ATTACHED" in str(part) for part in message["content"]] == [True, False]
    assert url in str(message["content"][1])
    assert context["tokens"]["by_source"]["current_turn"] > plain + 300  # the tokens for its size
    whole = url in request_text(await agent.context(view="another"))
    assert whole
    gone = False
    for turn in range(80):
        await agent.user(f"turn-{turn}. {TEXT}")
        context = await agent.context(wait_ms=WAIT_MS)
        text = request_text(context)
        assert (url in text) is ("ATTACHED" in text) is (seq not in evicted_seqs(context, "summarized"))
        gone = gone or url not in text
    assert gone


async def test_s1_10_what_is_for_this_turn_only_is_rendered_until_it_ends_and_in_no_later_one(
    client: httpx.AsyncClient,
) -> None:
    """`persist=False` is an event with `ttl_turns` 1: it stays in the log, and in contexts until its turn ends."""
    agent = await Agent.begin(client, "timeline")
    await agent.user("one")
    note = await agent.assistant("PASSING", ttl_turns=1)
    for _ in range(3):
        await agent.calls()
        assert "PASSING" in request_text(await agent.context())
    await client.post("/v1/sessions/s/turns/end", json={})
    await agent.user("two")
    later = await agent.context()
    assert "PASSING" not in request_text(later)
    assert "PASSING" not in request_text(await agent.context(view="another"))
    assert (await agent.log())[note - 1]["content"] == "PASSING"
    await check_coverage(client)


@pytest.mark.slow
async def test_s1_10_nor_do_summaries_carry_it_on(client: httpx.AsyncClient, worker: None, model: Summarizers) -> None:
    """Over the trigger, it stays verbatim while its turn runs, though the rounds around it are summarized."""
    policy = await preset(client, "timeline")
    policy["cut"]["keep_recent_turns"] = 0  # otherwise six turns this long are never cut
    agent = await Agent.begin(client, policy, max_tokens=4_000)

    def repeats(asked: ReceivedRequest) -> str:
        return f"{a_summary(asked)}\n- {' '.join(re.findall('PASSING-[0-9]+|KEPT-[0-9]+', asked.prompt))}"

    model.default = ok(repeats)
    for turn in range(4):
        await agent.user(f"turn-{turn} {TEXT}")
        await agent.post(
            {"type": "agent.note", "content": f"PASSING-{turn}", "ttl_turns": 1},
            {"type": "agent.note", "content": f"KEPT-{turn}"},
        )
        for step in range(45):
            await agent.calls(result=f"step-{step} {TEXT}")
            context = await agent.context(wait_ms=WAIT_MS)
            text = request_text(context)
            assert [f"PASSING-{n}" in text for n in range(turn + 1)] == [False] * turn + [True]
            assert not evicted_seqs(context, "dropped") - {1}
        assert context["summaries"]
        assert f"KEPT-{turn}" in text  # from the summary
        await check_coverage(client)
    every = [row["text"] for row in await summaries(client, live=False)]
    assert any("KEPT-3" in text for text in every)
    assert not any("PASSING" in text for text in every)
    assert not any("PASSING" in asked.prompt for asked in model.requests)
