"""S0: events that an agent hides and reads again, under the preset `timeline`."""

import httpx
import pytest

from tests.conformance.agent import Agent, Json, evicted_seqs, request_text
from tests.conformance.conftest import compact
from tests.conformance.test_s0_timeline import clock
from tests.support.summarizers import Summarizers

TEXT = "word " * 80
IMAGE = "iVBORw0KGgo" + "A" * 200


async def decide(client: httpx.AsyncClient, **asked: object) -> Json:
    answer = await client.patch("/v1/sessions/s/visibility", json=asked)
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


def reasons(done: Json) -> list[tuple[int, str]]:
    return [(one["seq"], one["reason"]) for one in done["refused"]]


async def test_s0_12_a_summarizer_reads_the_replacement_of_a_hidden_event(
    client: httpx.AsyncClient, worker: None, model: Summarizers
) -> None:
    agent = await Agent.begin(client, "timeline", max_tokens=4_000)
    await agent.user("begin")
    seq = await agent.calls(result=f"THE SECRET {TEXT}")
    assert (await decide(client, hide=[{"seq": seq, "replacement": "[not of interest]"}]))["hidden"] == [seq]
    for turn in range(40):
        await agent.user(f"turn-{turn}. {TEXT}")
    await agent.context()
    await compact(client)
    assert "[not of interest]" in model.requests[0].prompt
    assert "THE SECRET" not in model.requests[0].prompt


@pytest.mark.wing("audit")
async def test_s0_22_what_says_that_it_was_pruned_names_the_way_back(client: httpx.AsyncClient) -> None:
    agent = await Agent.begin(client, "timeline", max_tokens=200_000, recall=True)
    for turn in range(12):
        await agent.user(f"turn {turn}")
        await agent.calls(result=TEXT * 4)
    await agent.context(now=clock(0))
    pruned = await agent.context(now=clock(400))
    said = pruned["request"]["messages"][-1]["content"]
    assert said.startswith("[SYSTEM MESSAGE] Context was pruned because the session TTL (300s) was exceeded")
    assert "recall it" in said
    call = (await client.get(f"/v1/sessions/s/calls/{pruned['call_id']}")).json()
    assert call["notice"] == said
    seq = min(evicted_seqs(pruned, "replaced"))
    assert f'\\"recall_seq\\":{seq}' in request_text(pruned)


async def test_s0_23_of_a_path_the_first_with_a_replacement_appears_and_the_rest_is_dropped(
    client: httpx.AsyncClient,
) -> None:
    agent = await Agent.begin(client, "timeline", max_tokens=200_000)
    await agent.user("begin")
    image = {"type": "image", "data": IMAGE, "mime": "image/png"}
    for number in range(3):
        parts = [{"type": "text", "text": f"ORIGINAL {number}"}, image]
        await agent.post({"type": "agent.note", "content": parts, "path": "fi:a.png"})
    await agent.post({"type": "agent.note", "content": "NO PATH"}, {"type": "agent.note", "content": "NO WORDS"})
    log = await agent.log()
    hide = [
        {"seq": 2, "replacement": ""},
        {"seq": 3, "replacement": "[an image]"},
        {"seq": 4, "replacement": "[the image again]"},
        {"seq": 5},
        6,
    ]
    assert (await decide(client, hide=hide, force=True))["hidden"] == [2, 3, 4, 5, 6]
    context = await agent.context(format="blocks")
    assert [block["content"] for block in context["request"]["blocks"]] == ["begin", "[an image]"]
    assert IMAGE not in request_text(context)
    assert evicted_seqs(context, "replaced") == {2, 3, 4, 5, 6}
    assert await agent.log() == log


async def test_s0_23_where_a_pair_needs_it_a_line_says_that_it_is_hidden(client: httpx.AsyncClient) -> None:
    agent = await Agent.begin(client, "timeline", max_tokens=200_000, recall=True)
    await agent.user("begin")
    seq = await agent.calls(result="ORIGINAL")
    await decide(client, hide=[seq])
    seen = request_text(await agent.context())
    assert "ORIGINAL" not in seen
    assert f"[Hidden. Recall it with seq {seq}.]" in seen
    await decide(client, hide=[seq - 1, seq])
    assert [message["role"] for message in (await agent.context())["request"]["messages"]] == ["user"]


async def test_s0_27_nothing_up_to_the_pre_tail_cache_point_is_hidden(client: httpx.AsyncClient) -> None:
    asks = {"format": "anthropic", "model": "claude-sonnet-4-5", "max_tokens": 100_000}
    agent = await Agent.begin(client, "timeline", **asks)
    await agent.post({"type": "system.prompt", "content": "rule " * 4_000})
    await agent.user("one")
    await agent.assistant("done")
    await agent.user("two")
    rounds = [await agent.calls(result=TEXT) for _ in range(7)]
    before = (await agent.context())["cache"]["breakpoints"]
    assert ("pre_tail", rounds[2]) in [(point["kind"], point["seq"]) for point in before]
    done = await decide(client, hide=[rounds[1], rounds[2], rounds[3], rounds[5]])
    assert done["hidden"] == [rounds[3], rounds[5]]
    assert reasons(done) == [(rounds[1], "too_old"), (rounds[2], "too_old")]
    context = await agent.context()
    assert evicted_seqs(context, "replaced") == {rounds[3], rounds[5]}
    after = [(point["kind"], point["seq"]) for point in context["cache"]["breakpoints"]]
    assert ("pre_tail", rounds[2]) in after  # the cached prefix up to there is read again
    assert (await decide(client, hide=[rounds[1]], force=True))["hidden"] == [rounds[1]]


async def test_s0_27_nothing_with_more_than_2000_tokens_behind_it_is_hidden(client: httpx.AsyncClient) -> None:
    agent = await Agent.begin(client, "timeline", max_tokens=100_000)
    await agent.user("begin")
    seq = await agent.calls(result="ORIGINAL")
    tail = await agent.user("word " * 1_900)
    assert (await agent.context())["tokens"]["estimate"] < 2_000
    assert (await decide(client, hide=[seq]))["hidden"] == [seq]
    await decide(client, show=[seq])
    await agent.user("word " * 300)
    assert reasons(await decide(client, hide=[seq])) == [(seq, "too_old")]
    assert (await decide(client, hide=[tail]))["hidden"] == [tail]


async def test_s0_27_reading_shows_again(client: httpx.AsyncClient) -> None:
    agent = await Agent.begin(client, "timeline", max_tokens=100_000)
    await agent.user("begin")
    seq = await agent.calls(arguments={"path": "fi:a.md"}, result="ORIGINAL")
    before = await agent.context()
    await decide(client, hide=[{"path": "fi:a.md", "replacement": "[a.md]"}])
    assert "ORIGINAL" not in request_text(await agent.context())
    assert seq in (await decide(client, show=[{"path": "fi:a.md"}]))["shown"]
    assert (await agent.context())["sha256"] == before["sha256"]
