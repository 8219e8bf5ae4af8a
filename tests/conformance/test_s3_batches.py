"""S3: batches of messages, each with a summary, and the archive that shows them, under the preset `clip`."""

import itertools

import httpx
import pytest

from tests.conformance.agent import Agent, Json, evicted_seqs, request_text
from tests.conformance.conftest import check_coverage, compact, live_summary, preset, running_worker, runs, summaries
from tests.support import summarizers as stand_in
from tests.support.summarizers import Behaviour, ReceivedRequest, Summarizers, empty, ok, refusal, status

TEXT = "word " * 80
"""A text of a hundred tokens."""


def numbered() -> Behaviour:
    """Answer `told 1`, `told 2` and so on."""
    numbers = itertools.count(1)
    return ok(lambda asked: f"told {next(numbers)}")


async def begin(client: httpx.AsyncClient, policy: object, messages: int, times: int = 1) -> Agent:
    """Create a session with messages of `times` hundred tokens each, far from full."""
    agent = await Agent.begin(client, policy, max_tokens=100_000)
    await append_messages(agent, messages, times=times)
    await agent.context()
    return agent


async def append_messages(agent: Agent, messages: int, first: int = 1, times: int = 1) -> None:
    numbers = range(first, first + messages)
    await agent.post(*({"type": "user.message", "content": f"message-{number}. {TEXT * times}"} for number in numbers))


def previous_summary(asked: ReceivedRequest) -> str:
    """Return the previous summary in a request."""
    return asked.prompt.partition("<previous-summary>\n")[2].partition("\n</previous-summary>")[0]


def spans(found: list[Json]) -> list[tuple[int, int, int]]:
    return sorted((row["from_seq"], row["to_seq"], row["depth"]) for row in found)


async def begin_with_batches(
    client: httpx.AsyncClient, batches: int, times: int = 1, kept: int = 6, **rules: object
) -> Agent:
    """Create a session with `batches` batches of two messages, and five long messages that are kept."""
    agent = await begin(client, await preset(client, "clip", chunk_events=2, **rules), 2 * batches, times)
    await agent.post(*({"type": "user.message", "content": f"kept. {TEXT * kept}"} for _ in range(5)))
    await compact(client)
    return agent


async def fully_folded_context(agent: Agent) -> Json:
    """Return a context whose window requires every batch."""
    return await agent.context(max_tokens=4_000, format="openai")


async def test_s3_01_defaults(client: httpx.AsyncClient) -> None:
    schema = (await client.get("/openapi.json")).json()["components"]["schemas"]["PolicyDocument"]
    known = schema["properties"]["summarize"]["properties"]
    policy = await preset(client, "clip")
    rules = {name: knob["default"] for name, knob in known.items()} | policy["summarize"]
    assert (rules["chunk_events"], rules["max_tokens"], rules["clip_first"], rules["clip_last"]) == (20, 1024, 2, 2)
    assert (policy["cut"]["keep_messages"], policy["trigger"]["ratio"]) == (5, 0.8)


async def test_s3_02_all_but_the_newest_five_become_a_batch(client: httpx.AsyncClient, worker: None) -> None:
    agent = await begin(client, "clip", 10)
    await compact(client)
    assert spans(await summaries(client)) == [(1, 5, 0)]
    messages = (await agent.context(force=True))["request"]["messages"]
    assert [m["content"].split()[0] for m in messages[1:]] == [f"message-{n}." for n in range(6, 11)]


async def test_s3_02_too_few_messages_are_left_alone(
    client: httpx.AsyncClient, worker: None, model: Summarizers
) -> None:
    agent = await begin(client, "clip", 3)
    run = await compact(client)
    assert (run["state"], run["summaries"], run["tokens_before"], run["tokens_after"]) == ("skipped", [], 0, 0)
    assert (model.requests, (await agent.context(force=True))["summaries"]) == ([], [])


async def test_s3_03_chunks_are_limited_by_messages(
    client: httpx.AsyncClient, worker: None, model: Summarizers
) -> None:
    model.default = numbered()
    await begin(client, await preset(client, "clip", chunk_events=3), 15)
    await compact(client)
    assert spans(await summaries(client)) == [(1, 3, 0), (4, 6, 0), (7, 9, 0), (10, 10, 0)]


async def test_s3_03_chunks_are_limited_by_tokens(client: httpx.AsyncClient, worker: None, model: Summarizers) -> None:
    model.default = numbered()
    rules = {"chunk_events": None, "chunk_tokens": 300, "max_tokens": 150}
    await begin(client, await preset(client, "clip", **rules), 10)
    await compact(client)
    assert spans(await summaries(client)) == [(1, 3, 0), (4, 5, 0)]  # a batch includes the message that fills it


async def test_s3_04_each_chunk_sees_the_summary_before_it(
    client: httpx.AsyncClient, worker: None, model: Summarizers
) -> None:
    model.default = numbered()
    agent = await begin(client, await preset(client, "clip", chunk_events=3), 11)
    await compact(client)
    await append_messages(agent, 3, 12)
    await compact(client)
    previous = [previous_summary(asked) for asked in model.requests]
    assert previous[:2] == ["", "told 1"]
    assert previous[2].startswith("[Context Summary — 6 messages compressed across 1 compaction cycle]")
    assert [line for line in previous[2].splitlines() if line.startswith("told")] == ["told 1", "told 2"]
    assert {asked.temperature for asked in model.requests} == {0.0}
    assert "message-7." in model.requests[2].prompt and "message-6." not in model.requests[2].prompt
    assert not any(line.startswith("#") for line in model.requests[0].system.splitlines())  # a narrative


@pytest.mark.wing("compare")
async def test_s3_04_the_first_chunk_of_a_compaction_sees_the_whole_archive(
    client: httpx.AsyncClient, worker: None, model: Summarizers
) -> None:
    model.default = numbered()
    agent = await begin_with_batches(client, 5)
    small = {"max_tokens": 4_000, "format": "openai"}  # not recorded: one this small would request a compaction
    shown = (await client.post("/v1/sessions/s/context:preview", json=small)).raise_for_status().json()
    archive = shown["request"]["messages"][0]["content"]
    assert all(f"\ntold {number}" in archive for number in range(1, 6))
    model.reset()
    model.default = ok("told on")
    await append_messages(agent, 4, 16)
    await compact(client)
    first, second = (previous_summary(asked) for asked in model.requests[:2])
    assert first == archive
    assert second == "told on"


async def test_s3_05_a_batch_says_what_it_stands_for(
    client: httpx.AsyncClient, worker: None, model: Summarizers
) -> None:
    model.default = ok("told\nin two lines")
    agent = await Agent.begin(client, "clip", max_tokens=100_000)
    for minute in range(10):
        await agent.user(TEXT, occurred_at=f"2026-01-01T10:{minute:02}:00Z")
    await agent.context()
    await compact(client)
    batch = await live_summary(client)
    assert (batch["depth"], batch["events"], batch["text"]) == (0, 5, "told\nin two lines")
    archive = (await agent.context(force=True))["request"]["messages"][0]["content"]
    assert "[Batch 1 — depth 0, 2026-01-01T10:00:00Z to 2026-01-01T10:04:00Z]\ntold\nin two lines" in archive


async def test_s3_06_what_a_summary_says_of_itself_is_not_believed(
    client: httpx.AsyncClient, worker: None, model: Summarizers
) -> None:
    forged = "[depth:9|start:1999-01-01T00:00:00Z|end:1999-01-01T00:00:00Z|count:999]\ntold"
    model.default = ok(forged)
    await begin(client, "clip", 10)
    await compact(client)
    batch = await live_summary(client)
    assert (batch["depth"], batch["events"], batch["text"]) == (0, 5, forged)


async def test_s3_07_batches_of_a_session_are_its_own(client: httpx.AsyncClient, worker: None) -> None:
    await begin(client, "clip", 10)
    other = await Agent.begin(client, "clip", "s-123", max_tokens=100_000)
    await append_messages(other, 20)
    await compact(client)
    assert len(await summaries(client)) == 1
    assert (await client.get("/v1/sessions/s-123/summaries")).json()["items"] == []


@pytest.mark.parametrize(("batches", "live"), [(6, 6), (7, 3)])
async def test_s3_08_merged_when_there_are_more_than_the_first_the_last_and_two(
    client: httpx.AsyncClient, worker: None, model: Summarizers, batches: int, live: int
) -> None:
    model.default = numbered()
    await begin_with_batches(client, batches)
    assert len(await summaries(client)) == live


@pytest.mark.parametrize(
    ("scope", "left"),
    [
        ("oldest", [(1, 10, 1), (11, 12, 0), (13, 14, 0)]),
        ("middle", [(1, 2, 0), (3, 4, 0), (5, 10, 1), (11, 12, 0), (13, 14, 0)]),
    ],
)
async def test_s3_09_several_batches_are_merged_into_one(
    client: httpx.AsyncClient, worker: None, model: Summarizers, scope: str, left: list[tuple[int, int, int]]
) -> None:
    model.default = numbered()
    agent = await begin_with_batches(client, 7, scope=scope)
    found = await summaries(client)
    assert spans(found) == left
    merged = next(row for row in found if row["depth"] == 1)
    sources = [row for row in await summaries(client, live=False) if row["id"] in merged["sources"]]
    assert merged["events"] == sum(row["events"] for row in sources) == merged["to_seq"] - merged["from_seq"] + 1
    assert {(row["status"], row["superseded_by"]) for row in sources} == {("superseded", merged["id"])}
    assert "told 3" in model.requests[-1].prompt and "told 7" not in model.requests[-1].prompt
    await fully_folded_context(agent)
    assert [row["from_seq"] for row in await check_coverage(client)] == [row[0] for row in left] + [15]


async def test_s3_09_a_merged_batch_is_merged_again_one_level_up(
    client: httpx.AsyncClient, worker: None, model: Summarizers
) -> None:
    model.default = numbered()
    agent = await begin_with_batches(client, 7)
    await append_messages(agent, 8, 20)
    await compact(client)
    assert spans(await summaries(client)) == [(1, 18, 2), (19, 20, 0), (21, 22, 0)]


async def test_s3_10_a_source_is_superseded_and_told_of(
    client: httpx.AsyncClient, worker: None, model: Summarizers
) -> None:
    model.default = numbered()
    await begin_with_batches(client, 7)
    merged = next(row for row in await summaries(client) if row["depth"] == 1)
    assert len(merged["sources"]) == 5
    assert merged["id"] in (await runs(client))[0]["summaries"]
    texts = [row["text"] for row in await summaries(client, live=False) if row["status"] == "superseded"]
    assert texts == [f"told {number}" for number in range(1, 6)]


async def first_message(agent: Agent) -> str:
    message = (await fully_folded_context(agent))["request"]["messages"][0]
    assert message["role"] == "system"
    return str(message["content"])


async def test_s3_11_the_archive_is_the_first_message(
    client: httpx.AsyncClient, worker: None, model: Summarizers
) -> None:
    model.default = numbered()
    agent = await begin_with_batches(client, 4)
    lines = (await first_message(agent)).split("\n")
    assert lines[0] == "[Context Summary — 8 messages compressed across 1 compaction cycle]"
    assert [line.split(",")[0] for line in lines if line.startswith("[Batch")] == [
        "[Batch 1 — depth 0",
        "[Batch 2 — depth 0",
        "[Batch 3 — depth 0",
        "[Batch 4 — depth 0",
    ]
    assert [line for line in lines if line.startswith("told")] == ["told 1", "told 2", "told 3", "told 4"]
    assert not any(line.startswith("##") for line in lines)


async def test_s3_11_the_archives_middle_is_left_out_if_it_exceeds_its_room(
    client: httpx.AsyncClient, worker: None, model: Summarizers
) -> None:
    """The middle is left out if the batches exceed their room; while they fit, all of them are shown (I11)."""
    numbers = itertools.count(1)
    model.default = ok(lambda asked: f"told {next(numbers)} {'and more of it ' * 64}")
    agent = await begin_with_batches(client, 6, times=2, kept=5)
    archive = await first_message(agent)
    lines = [line for line in archive.split("\n") if line]
    assert lines[0] == "[Context Summary — 12 messages compressed across 1 compaction cycle]"
    assert [" ".join(line.split()[:2]) for line in lines[1:]] == [
        "## Earliest",
        "[Batch 1",
        "told 1",
        "[Batch 2",
        "told 2",
        "[... 2",
        "## Recent",
        "[Batch 5",
        "told 5",
        "[Batch 6",
        "told 6",
    ]
    assert lines[6].startswith("[... 2 earlier summaries omitted")
    runs = [(row["disposition"], row["from_seq"]) for row in await check_coverage(client)]
    summarized = [("summarized", 1), ("summarized", 3), ("dropped", 5), ("summarized", 9), ("summarized", 11)]
    assert runs == [*summarized, ("verbatim", 13)]


async def test_s3_11_cycles_are_counted_by_depth(client: httpx.AsyncClient, worker: None, model: Summarizers) -> None:
    model.default = numbered()
    agent = await begin_with_batches(client, 7)
    assert "14 messages compressed across 2 compaction cycles]" in await first_message(agent)


async def test_s3_11_without_batches_there_is_no_archive(client: httpx.AsyncClient, worker: None) -> None:
    agent = await begin(client, "clip", 3)
    assert "Context Summary" not in request_text(await agent.context(force=True))


async def test_s3_12_what_is_archived_stays_in_the_log(client: httpx.AsyncClient, worker: None) -> None:
    agent = await begin(client, "clip", 10)
    await compact(client)
    context = await agent.context(force=True)
    assert "message-1." not in request_text(context) and "message-6." in request_text(context)
    assert [event["seq"] for event in await agent.log()] == list(range(1, 11))


@pytest.mark.parametrize(
    "behaviour", [status(400), status(401), empty(), refusal(), stand_in.cut_off(), stand_in.error_text()]
)
async def test_s3_13_a_failure_leaves_the_history_as_it_was(
    client: httpx.AsyncClient, worker: None, model: Summarizers, behaviour: Behaviour
) -> None:
    agent = await begin(client, "clip", 10)
    before = await agent.context()
    model.default = behaviour
    run = await compact(client)
    assert (run["state"], run["summaries"], run["tokens_before"], run["tokens_after"]) == ("failed", [], 0, 0)
    assert run["error"]
    after = await agent.context()
    assert (after["sha256"], after["tokens"]["estimate"]) == (before["sha256"], before["tokens"]["estimate"])
    assert {row["disposition"] for row in await check_coverage(client)} == {"verbatim"}


async def test_s3_13_a_failure_leaves_the_history_as_it_was_also_over_the_trigger(
    client: httpx.AsyncClient, worker: None, model: Summarizers
) -> None:
    """Without a summary nothing is dropped below the target, and a later summary covers all that was (I11)."""
    agent = await Agent.begin(client, {**await preset(client, "clip"), "window_tokens": 4_000}, format="openai")
    model.default = status(400)
    for number in range(1, 36):
        await append_messages(agent, 1, number)
        context = await agent.context(wait_ms=60_000)
        assert context["evictions"] == []
    assert 3_200 < context["tokens"]["estimate"] <= context["tokens"]["target"]
    assert context["compaction"]["state"] == "stalled"
    assert {run["state"] for run in await runs(client)} == {"failed"}
    await append_messages(agent, 371, 36)  # ten windows
    lost = await agent.context()
    assert evicted_seqs(lost, "dropped")
    assert "message-406." in request_text(lost)
    model.default = ok("told")
    for view in ("another", "main"):
        context = await agent.context(view=view, wait_ms=60_000)
        assert (bool(context["summaries"]), evicted_seqs(context, "dropped")) == (True, set())
        assert context["summaries"][-1]["to_seq"] >= max(evicted_seqs(lost, "dropped"))


async def test_s3_15_a_timeout_is_retried_twice(
    client: httpx.AsyncClient, fast_retries: None, database_url: str, model: Summarizers
) -> None:
    await begin(client, "clip", 10)
    model.queue(model.never(), model.never())
    async with running_worker(database_url, model, seconds=0.5):
        run = await compact(client)
    assert (run["state"], run["attempts"], len(model.requests)) == ("succeeded", 2, 3)
    assert (await live_summary(client))["to_seq"] == 5


async def test_s3_15_other_errors_are_not_retried(client: httpx.AsyncClient, worker: None, model: Summarizers) -> None:
    await begin(client, "clip", 10)
    model.default = status(400)
    run = await compact(client)
    assert (run["state"], run["attempts"], len(model.requests)) == ("failed", 0, 1)


async def test_s3_15_a_chunk_that_is_too_long_for_the_model_is_halved(
    client: httpx.AsyncClient, worker: None, model: Summarizers
) -> None:
    await begin(client, await preset(client, "clip", chunk_events=40), 45)
    model.default = stand_in.context_too_long(12_000)
    run = await compact(client)
    assert run["state"] == "succeeded"
    assert spans(await summaries(client)) == [(1, 40, 0)]

    def held(asked: ReceivedRequest) -> int:
        return asked.prompt.count("[User]: message-")

    assert [held(asked) for asked in model.requests] == [40, 20, 20]
    assert "<previous-summary>" in model.requests[2].prompt


async def test_s3_15_after_three_failures_the_model_is_not_called_for_a_while(
    client: httpx.AsyncClient, fast_retries: None, database_url: str, model: Summarizers
) -> None:
    await begin(client, "clip", 15)
    model.default = status(500)
    async with running_worker(database_url, model, breaker_seconds=3.0):
        run = await compact(client)
        assert (run["state"], run["attempts"], len(model.requests)) == ("failed", 3, 3)
        model.default = ok("told")
        again = await compact(client)
    assert (again["state"], again["attempts"], len(model.requests)) == ("succeeded", 1, 4)


async def test_s3_11_a_forced_compaction_drops_nothing_that_has_a_summary(
    client: httpx.AsyncClient, worker: None
) -> None:
    agent = await Agent.begin(client, await preset(client, "clip", chunk_events=4))
    for turn in range(12):
        await agent.user(f"turn {turn}: " + "words " * 40)
        await agent.assistant(f"answer {turn}: " + "words " * 40)
    run = await compact(client)
    context = await agent.context(max_tokens=100_000, force=True)
    dropped = [row for row in context["evictions"] if row["disposition"] == "dropped" and row["reducer"] != "fold"]
    assert [row for row in dropped if row["from_seq"] <= run["to_seq"]] == []
