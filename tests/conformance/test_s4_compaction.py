"""S4: one summary before the kept events, sized by the window, under the preset `threshold`."""

import asyncio
import json

import httpx
import pytest

from app.core.compaction.prompt import Prompt
from app.providers import expected_tokens
from tests.conformance.agent import WAIT_MS, Agent, Json, request_text
from tests.conformance.conftest import check_coverage, compact, live_summary, running_worker, runs, summaries
from tests.support.summarizers import (
    Behaviour,
    ReceivedRequest,
    Reply,
    Summarizers,
    by_part,
    context_too_long,
    empty,
    is_prefix,
    ok,
    slow,
    status,
)

WINDOW = 8_000
"""A window that is compacted above 5,952 tokens and keeps 4,096."""
TEXT = "word " * 80
"""A text of a hundred tokens."""
SPENDING = 4_300
"""Tokens per hour that allow each of a split turn's two requests, one after the other but not both at the same time."""
WHOLE = "## Goal\n- Ship it.\n## Constraints & Preferences\n## Progress\n### Done\n### In Progress\n### Blocked\n\
## Key Decisions\n## Next Steps\n## Critical Context\n- The history."
PREFIX = "## Original Request\n- THE TASK\n## Early Progress\n- Much.\n## Context for Suffix\n- None."


async def begin(client: httpx.AsyncClient) -> Agent:
    return await Agent.begin(client, "threshold", max_tokens=WINDOW)


async def talk(agent: Agent, turns: int, first: int = 0) -> None:
    """Append turns of one message each in one request."""
    numbers = range(first, first + turns)
    await agent.post(*({"type": "user.message", "content": f"turn-{number}. {TEXT}"} for number in numbers))


async def work(agent: Agent, rounds: int) -> None:
    """Append calls and results, two hundred tokens per round."""
    for number in range(rounds):
        await agent.calls("look", f"round-{number}. {TEXT * 2}", {"at": number})


async def ready(client: httpx.AsyncClient, turns: int = 54) -> Agent:
    """Create a session just below its threshold."""
    agent = await begin(client)
    await talk(agent, turns)
    await agent.context()
    return agent


async def test_s4_08_what_is_kept_never_begins_with_a_result(client: httpx.AsyncClient, worker: None) -> None:
    agent = await begin(client)
    await agent.user("THE TASK")
    await work(agent, 24)
    context = await agent.context(format="blocks")
    assert context["evictions"] == []
    await compact(client)
    made = await live_summary(client)
    kinds = {event["seq"]: event["type"] for event in await agent.log()}
    assert kinds[made["to_seq"]] == "tool.result" and kinds[made["to_seq"] + 1] == "tool.call"
    kept = [block["kind"] for block in (await agent.context(force=True, format="blocks"))["request"]["blocks"]]
    assert kept.index("call") < kept.index("result")


async def test_s4_09_without_events_there_is_nothing_to_compact(
    client: httpx.AsyncClient, worker: None, model: Summarizers
) -> None:
    await begin(client)
    run = await compact(client)
    assert (run["state"], run["error"], model.requests) == ("skipped", "nothing to compact", [])


async def test_s4_09_in_a_small_session_there_is_nothing_to_compact(
    client: httpx.AsyncClient, worker: None, model: Summarizers
) -> None:
    await ready(client, 5)
    run = await compact(client)
    assert (run["state"], run["error"], model.requests) == ("skipped", "nothing to compact", [])


async def test_s4_09_a_blank_summary_is_an_error(client: httpx.AsyncClient, worker: None, model: Summarizers) -> None:
    agent = await ready(client)
    before = await agent.context()
    model.queue(ok("  \n "), empty())
    run = await compact(client)
    assert run["state"] == "failed" and "empty" in run["error"]
    assert await summaries(client) == []
    refused = await summaries(client, live=False)
    assert {row["status"] for row in refused} == {"refused"} and all(row["complaints"] for row in refused)
    assert (await agent.context())["sha256"] == before["sha256"]


async def test_s4_09_a_run_continues_from_the_kept_events_with_the_previous_summary(
    client: httpx.AsyncClient, worker: None, model: Summarizers
) -> None:
    agent = await ready(client)
    await compact(client)
    first = await live_summary(client)
    await agent.context(force=True)
    model.reset()
    await talk(agent, 20, 54)
    await compact(client)
    conversation, _, rest = model.requests[0].prompt.partition("</conversation>")
    assert conversation.startswith(f"<conversation>\n[User]: turn-{first['to_seq']}.")
    assert f"<previous-summary>\n{first['text']}\n</previous-summary>" in rest
    second = await live_summary(client)
    assert (second["from_seq"], second["sources"]) == (1, [first["id"]])


async def test_s4_10_a_split_task_has_its_own_part(client: httpx.AsyncClient, worker: None, model: Summarizers) -> None:
    agent = await begin(client)
    await talk(agent, 4)
    await agent.user("THE TASK")
    await work(agent, 22)
    await agent.context()
    model.default = by_part(ok(WHOLE), ok(PREFIX))
    await compact(client)
    made = await live_summary(client)
    history, beginning = model.parts()
    assert "turn-3." in history.prompt and "THE TASK" not in history.prompt
    assert "THE TASK" in beginning.prompt and "turn-3." not in beginning.prompt
    assert made["text"].startswith(f"{WHOLE}\n\n---\n\n**Turn Context (split turn):**\n\n{PREFIX}")
    assert made["split_turn"] == 5


async def split_task(client: httpx.AsyncClient, model: Summarizers, behaviour: Behaviour) -> Agent:
    """Create a session of more than ten windows whose last task is so long that the cut falls into it.

    Everything before the task is summarized already, and the model then has this behaviour.
    """
    agent = await begin(client)
    for first in range(0, 900, 50):
        await talk(agent, 50, first)
        await agent.context(wait_ms=WAIT_MS)
    model.reset()
    model.default = behaviour
    events: list[Json] = [{"type": "user.message", "content": "THE TASK"}]
    for number in range(28):
        events.append({"type": "tool.call", "call_id": f"t{number}", "tool": "look", "arguments": {"at": number}})
        events.append({"type": "tool.result", "call_id": f"t{number}", "content": f"round-{number}. {TEXT * 2}"})
    await agent.post(*events)
    return agent


async def test_s4_10_the_two_parts_are_requested_concurrently(
    client: httpx.AsyncClient, worker: None, model: Summarizers
) -> None:
    both = asyncio.Event()
    agent = await split_task(client, model, by_part(slow(both, ok(WHOLE)), slow(both, ok(PREFIX))))
    asking = asyncio.create_task(agent.context(wait_ms=WAIT_MS))
    try:
        await asyncio.wait_for(model.wait_for_requests(2), 60)
    finally:
        both.set()
        context = await asking
    assert "THE TASK" in model.parts()[1].prompt
    made = await live_summary(client)
    assert made["text"].startswith(f"{WHOLE}\n\n---\n\n**Turn Context (split turn):**\n\n{PREFIX}")
    assert [row["id"] for row in context["summaries"]] == [made["id"]]


@pytest.mark.slow
@pytest.mark.parametrize("failing", ["history", "prefix"])
async def test_s4_10_if_one_part_fails_nothing_is_kept_of_the_other(
    client: httpx.AsyncClient, worker: None, model: Summarizers, failing: str
) -> None:
    async def once_both_are_asked(asked: ReceivedRequest) -> Reply:
        await asyncio.wait_for(model.wait_for_requests(2), 60)
        return await status(400).answer(asked)

    fails, hangs = Behaviour(once_both_are_asked), model.never()
    parts = (fails, hangs) if failing == "history" else (hangs, fails)
    agent = await split_task(client, model, by_part(*parts))
    before = await summaries(client)
    context = await agent.context(wait_ms=WAIT_MS)
    assert (await runs(client))[0]["state"] == "failed"
    assert await summaries(client) == before
    await check_coverage(client)
    assert context["tokens"]["estimate"] <= context["tokens"]["target"]
    model.reset()
    model.default = by_part(ok(WHOLE), ok(PREFIX))
    await compact(client)  # the hanging request was cancelled
    assert PREFIX in (await live_summary(client))["text"]


async def test_s4_10_the_parts_are_requested_in_turn_if_spending_has_no_room_for_both(
    client: httpx.AsyncClient, database_url: str, model: Summarizers
) -> None:
    """The tokens reserved for a request exceed its cost."""
    agent = await begin(client)
    await talk(agent, 4)
    await agent.user("THE TASK")
    await work(agent, 22)
    await agent.context()
    model.default = by_part(ok(WHOLE), ok(PREFIX))
    async with running_worker(database_url, model, spend_tokens_max=SPENDING):
        run = await compact(client)
    expected = [expected_tokens(Prompt(one.system, one.prompt, one.max_tokens, 0.2)) for one in model.parts()]
    assert max(expected) < SPENDING < sum(expected)
    assert run["state"] == "succeeded"
    assert run["tokens_read"] < SPENDING
    assert PREFIX in (await live_summary(client))["text"]


async def test_s4_10_the_parts_are_requested_in_turn_if_the_provider_answers_one_at_a_time(
    client: httpx.AsyncClient, worker: None, model: Summarizers
) -> None:
    agent = await begin(client)
    await talk(agent, 4)
    await agent.user("THE TASK")
    await work(agent, 22)
    await agent.context()
    in_progress: list[ReceivedRequest] = []

    async def one_at_a_time(asked: ReceivedRequest) -> Reply:
        if in_progress:
            return await status(429, retry_after=60).answer(asked)
        in_progress.append(asked)
        if len(model.requests) == 1:
            await asyncio.wait_for(model.wait_for_requests(2), 60)
        said = await by_part(ok(WHOLE), ok(PREFIX)).answer(asked)
        in_progress.clear()
        return said

    model.default = Behaviour(one_at_a_time)
    run = await compact(client)
    assert (run["state"], len(model.requests)) == ("succeeded", 3)
    assert PREFIX in (await live_summary(client))["text"]


async def test_s4_10_a_task_over_the_models_window_is_sent_in_pieces(
    client: httpx.AsyncClient, worker: None, model: Summarizers
) -> None:
    """The history is small and requested once; the pieces of the task are requested one after the other."""
    agent = await begin(client)
    await talk(agent, 4)
    await agent.user("THE TASK")
    model.default = context_too_long(30_000)
    events: list[Json] = []
    for number in range(200):
        events.append({"type": "tool.call", "call_id": f"t{number}", "tool": "look", "arguments": {"at": number}})
        events.append({"type": "tool.result", "call_id": f"t{number}", "content": f"round-{number}. {TEXT * 2}"})
    await agent.post(*events)
    context = await agent.context(wait_ms=WAIT_MS)
    history, *later = [asked for asked in model.requests if not is_prefix(asked)]
    pieces = [asked.prompt for asked in model.requests if is_prefix(asked) and len(asked.prompt) < 30_000]
    assert "turn-3." in history.prompt and "THE TASK" not in history.prompt
    assert len(pieces) > 2 and all("THE TASK" in prompt for prompt in pieces)
    assert all("THE TASK" in asked.prompt for asked in later)
    made = await live_summary(client)
    assert "THE TASK" in made["text"]
    assert [row["id"] for row in context["summaries"]] == [made["id"]]
    assert {row["disposition"] for row in await check_coverage(client)} <= {"summarized", "verbatim"}


async def test_s4_10_without_history_the_summary_says_so(
    client: httpx.AsyncClient, worker: None, model: Summarizers
) -> None:
    agent = await begin(client)
    await agent.user("THE TASK")
    await work(agent, 24)
    await agent.context()
    model.queue(ok(PREFIX))
    await compact(client)
    assert (await live_summary(client))["text"].startswith(
        f"No prior history.\n\n---\n\n**Turn Context (split turn):**\n\n{PREFIX}"
    )
    assert len(model.requests) == 1


async def test_s4_11_what_the_model_reads(client: httpx.AsyncClient, worker: None, model: Summarizers) -> None:
    agent = await begin(client)
    await agent.post({"type": "system.prompt", "content": "THE SYSTEM PROMPT"})
    await agent.user("please")
    await agent.post({"type": "system.message", "content": "said by the developer"})
    thinking = [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "I look"}]
    await agent.post({"type": "assistant.message", "content": thinking})
    await agent.calls("look", "r" * 4_400, {"text": "a" * 2_200})
    await talk(agent, 40)
    await agent.context()
    await compact(client)
    prompt = model.requests[0].prompt
    assert "[User]: please\n\n[System]: said by the developer\n\n[Assistant]: [thinking]\nI look" in prompt
    assert f"{'r' * 4_000}...(truncated)" in prompt and "r" * 4_001 not in prompt
    assert "a" * 1_900 in prompt and "a" * 2_001 not in prompt
    assert "[Tool result]: " in prompt and "THE SYSTEM PROMPT" not in prompt


async def test_s4_12_the_form_that_is_asked_for(client: httpx.AsyncClient, worker: None, model: Summarizers) -> None:
    agent = await ready(client)
    await compact(client, focus="the parser")
    await agent.context(force=True)
    await talk(agent, 20, 54)
    await compact(client)
    first, *_, last = model.requests
    headings = [line.strip("# ") for line in first.system.splitlines() if line.startswith("#")]
    assert headings == [
        "Goal",
        "Constraints & Preferences",
        "Progress",
        "Done",
        "In Progress",
        "Blocked",
        "Key Decisions",
        "Next Steps",
        "Critical Context",
    ]
    assert "Additional focus: the parser" in first.prompt and "Additional focus" not in last.prompt
    assert "<previous-summary>" not in first.prompt and "<previous-summary>" in last.prompt
    assert not any("tools" in asked.body for asked in model.requests)


@pytest.mark.parametrize("rounds", [0, 22])
async def test_s4_13_it_begins_by_saying_that_it_was_compacted(
    client: httpx.AsyncClient, worker: None, rounds: int
) -> None:
    agent = await begin(client)
    await talk(agent, 4 if rounds else 54)
    await work(agent, rounds)  # many rounds split a turn
    await agent.context()
    await compact(client)
    first = (await agent.context(force=True))["request"]["messages"][0]
    assert first["content"].startswith("[The conversation was compacted")
    assert ("split turn" in first["content"]) == bool(rounds)


async def test_s4_14_files_are_carried_forward(client: httpx.AsyncClient, worker: None, model: Summarizers) -> None:
    agent = await begin(client)
    await agent.user("go")
    await agent.calls("read", "text", {"path": "b.py"})
    await agent.calls("read", "text", {"path": "a.py"})
    await agent.calls("edit", "ok", {"path": "a.py", "old_string": "x", "new_string": "y"})
    await agent.calls("apply_patch", "ok", {"patch": "*** Update File: p.py\n@@\n-a\n+b"})
    await agent.calls("put", "ok", {"path": "w.py", "content": "text"})  # recognized by its arguments
    await talk(agent, 50)
    await agent.context()
    model.default = ok(WHOLE)
    await compact(client)
    lists = "<modified-files>\na.py\np.py\nw.py\n</modified-files>\n<read-files>\nb.py\n</read-files>"
    assert lists in (await live_summary(client))["text"]
    await agent.context(force=True)
    await agent.calls("write", "ok", {"path": "b.py", "content": "now written"})
    await talk(agent, 60, 50)
    await compact(client)
    text = (await live_summary(client))["text"]
    assert "<modified-files>\na.py\nb.py\np.py\nw.py\n</modified-files>" in text and "<read-files>" not in text


DIFF = """\
diff --git a/{0} b/{0}
index 1234567..89abcde 100644
--- a/{0}
+++ b/{0}
@@ -1 +1 @@
-old
+new
"""


@pytest.mark.wing("audit")
@pytest.mark.wing("recall")
async def test_s4_14_files_that_a_results_diff_names_are_modified(client: httpx.AsyncClient, worker: None) -> None:
    agent = await begin(client)
    await agent.user("go")
    await agent.calls("rename_symbol", "done\n" + DIFF.format("lib/a.py") + DIFF.format("lib/b.py"), {"to": "tide"})
    await agent.calls("rename_symbol", json.dumps({"diff": DIFF.format("lib/json.py")}), {"to": "tide"})
    await agent.calls("edit", DIFF.format("lib/c.py"), {"path": "/srv/lib/c.py", "old_string": "a", "new_string": "b"})
    gone = DIFF.format("lib/gone.py").replace("+++ b/lib/gone.py", "+++ /dev/null")
    await agent.calls("bash", gone, {"command": "make fix && git diff"})
    await agent.calls("bash", DIFF.format("old/history.py"), {"command": "git show HEAD~3"})
    await agent.calls("read_file", DIFF.format("old/read.py"), {"path": "fix.patch"})
    await agent.calls("grep", "+++ b/old/found.py", {"pattern": "found"})
    for first in range(0, 900, 50):
        await talk(agent, 50, first)
        context = await agent.context(wait_ms=WAIT_MS)
    made = await live_summary(client)
    assert [row["id"] for row in context["summaries"]] == [made["id"]]
    modified = ["/srv/lib/c.py", "lib/a.py", "lib/b.py", "lib/gone.py", "lib/json.py"]
    assert sorted(made["digest"]["files_modified"]) == modified
    assert "<modified-files>\n" + "\n".join(modified) + "\n</modified-files>" in made["text"]
    for path in modified:
        found = (await client.post("/v1/sessions/s/recall", json={"paths": [path]})).json()["items"]
        assert any(item.get("content") for item in found), path


async def test_s4_15_what_is_recorded(client: httpx.AsyncClient, worker: None) -> None:
    agent = await ready(client)
    before = (await agent.context())["tokens"]["estimate"]
    run = await compact(client)
    made = await live_summary(client)
    [listed] = await runs(client)
    assert (listed["id"], listed["state"], listed["summaries"]) == (run["id"], "succeeded", [made["id"]])
    assert abs(listed["tokens_before"] - before) <= before // 10
    kept = [row for row in await agent.log() if row["seq"] > listed["to_seq"]]
    assert kept[0]["content"].startswith(f"turn-{listed['to_seq']}.")
    assert listed["created_at"] <= listed["finished_at"]


async def test_s4_16_a_context_is_the_summary_as_a_user_message_and_the_kept_events(
    client: httpx.AsyncClient, worker: None
) -> None:
    agent = await ready(client)
    await compact(client)
    made = await live_summary(client)
    context = await agent.context(force=True, format="openai")
    messages: list[Json] = context["request"]["messages"]
    assert messages[0]["role"] == "user" and made["text"] in messages[0]["content"]
    assert [m["content"].split()[0] for m in messages[1:]] == [f"turn-{n}." for n in range(made["to_seq"], 54)]
    assert [row["disposition"] for row in await check_coverage(client)] == ["summarized", "verbatim"]


async def test_s4_16_an_older_summary_is_not_shown_too(client: httpx.AsyncClient, worker: None) -> None:
    agent = await ready(client)
    await compact(client)
    await agent.context(force=True)
    await talk(agent, 20, 54)
    await compact(client)
    context = await agent.context(force=True)
    assert [row["from_seq"] for row in context["summaries"]] == [1]
    assert request_text(context).count("The conversation was compacted") == 1
