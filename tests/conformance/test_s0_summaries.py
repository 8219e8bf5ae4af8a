"""S0 and S1: the summary in place of the cut part of the timeline, under the preset `timeline`."""

import json
import re

import httpx
import pytest

from tests.conformance.agent import BY_TURN, WAIT_MS, Agent, Json, batches, evicted_seqs, request_text
from tests.conformance.conftest import check_coverage, compact, live_summary, preset, runs, summaries
from tests.support.summarizers import (
    Behaviour,
    ReceivedRequest,
    Summarizers,
    by_part,
    context_too_long,
    empty,
    is_prefix,
    ok,
)

TEXT = "word " * 80
WINDOW = 4_000
"""A window of which seven tenths are kept, about thirty texts."""
WHOLE = "## Goal\n- Ship it.\n## Constraints & Preferences\n## Progress\n### Done\n### In Progress\n\
### Not Started\n### Blocked\n## Key Decisions\n## Next Steps\n## Critical Context\n- The history."
PREFIX = "## Original Request\n- THE QUESTION\n## Early Progress\n- They talked.\n## Context for Suffix\n- None."


async def begin(client: httpx.AsyncClient) -> Agent:
    return await Agent.begin(client, "timeline", max_tokens=WINDOW)


async def say(agent: Agent, first: int, last: int) -> None:
    for number in range(first, last + 1):
        await agent.assistant(f"said-{number}. {TEXT}")


async def split_turn_session(client: httpx.AsyncClient) -> Agent:
    """Create a first turn, and a second one so long that the cut falls into it."""
    agent = await begin(client)
    await agent.user(f"first question. {TEXT}")
    await agent.assistant(f"first answer. {TEXT}")
    await agent.user("THE QUESTION")
    await say(agent, 0, 35)
    await agent.post(*({"type": "user.message", "content": "and then?"} for _ in range(6)))
    await agent.context()  # sets the view's window
    return agent


async def whole(client: httpx.AsyncClient, turns: int = 40) -> Agent:
    """Create turns of one message each, so that the cut falls between two of them."""
    agent = await begin(client)
    for turn in range(turns):
        await agent.user(f"turn-{turn}. {TEXT}")
    await agent.context()
    return agent


def first_words(context: Json) -> list[str]:
    """Return the first word of every message."""
    return [message["content"].split()[0] for message in context["request"]["messages"]]


async def test_s0_09_a_split_turns_beginning_is_summarized_separately(
    client: httpx.AsyncClient, worker: None, model: Summarizers
) -> None:
    agent = await split_turn_session(client)
    model.default = by_part(ok(WHOLE), ok(PREFIX))
    await compact(client)
    history, prefix = model.parts()
    assert "first question." in history.prompt and "said-0." not in history.prompt
    assert "THE QUESTION" in prefix.prompt and "said-0." in prefix.prompt and "first" not in prefix.prompt
    assert (await live_summary(client))["text"] == f"{WHOLE}\n\n---\n\n**Turn Context (split turn):**\n\n{PREFIX}"
    context = await agent.context(force=True)
    cut = context["summaries"][0]["to_seq"] + 1
    assert (await agent.log())[cut - 1]["content"] == context["request"]["messages"][1]["content"]


async def test_s0_09_a_cut_between_turns_splits_none(
    client: httpx.AsyncClient, worker: None, model: Summarizers
) -> None:
    await whole(client)
    await compact(client)
    assert ((await live_summary(client))["split_turn"], len(model.requests)) == (None, 1)
    assert "split turn" not in (await live_summary(client))["text"]


async def test_s0_09_a_turn_with_a_summarized_beginning_is_not_split_again(
    client: httpx.AsyncClient, worker: None, model: Summarizers
) -> None:
    agent = await split_turn_session(client)
    await compact(client)
    first = await live_summary(client)
    model.reset()
    await agent.post(*({"type": "user.message", "content": TEXT} for _ in range(8)))
    await compact(client)
    second = await live_summary(client)
    assert first["split_turn"] == second["split_turn"] == 2
    assert second["to_seq"] > first["to_seq"]
    assert [asked.max_tokens for asked in model.requests] == [640]  # later events go into the history
    assert first["text"] in model.requests[0].prompt


async def long_turn(client: httpx.AsyncClient, model: Summarizers, above: int) -> Agent:
    """Post one turn of about ten windows in bulk, with a model that takes at most `above` characters."""
    agent = await begin(client)
    await agent.user("THE QUESTION")
    for first in range(0, 400, 100):
        events = ({"type": "assistant.message", "content": f"said-{n}. {TEXT}"} for n in range(first, first + 100))
        await agent.post(*events)
    model.default = context_too_long(above)
    await agent.context(wait_ms=WAIT_MS)
    return agent


async def test_s0_09_a_split_turns_summary_starts_at_the_turns_first_event(
    client: httpx.AsyncClient, worker: None, model: Summarizers
) -> None:
    """The turn begins far before the newest windows, which are all that is loaded to find the cut."""
    agent = await long_turn(client, model, 1_000_000)
    first, *_ = model.requests
    assert is_prefix(first) and first.prompt.startswith("<conversation>\n[User]: THE QUESTION\n\n[Assistant]: said-0.")
    made = await live_summary(client)
    assert (made["split_turn"], made["from_seq"]) == (1, 1)
    context = await agent.context()
    assert [row["id"] for row in context["summaries"]] == [made["id"]]
    assert "THE QUESTION" in made["text"]  # the model's answer does not contain it


async def test_s0_10_what_a_summary_says_of_itself(client: httpx.AsyncClient, worker: None, model: Summarizers) -> None:
    agent = await split_turn_session(client)
    run = await compact(client)
    made = await live_summary(client)
    assert (made["id"], made["status"], made["from_seq"]) == (run["summaries"][0], "live", 1)
    assert (made["turns"], made["split_turn"], made["summarizer"]) == ([1, 2], 2, "openai")
    assert made["digest"]["events"] == made["events"] == made["to_seq"]
    context = await agent.context(force=True)
    number = made["to_seq"] - 3  # of the last covered event; three events precede the first "said-"
    assert first_words(context)[:2] == ["[The", f"said-{number}."]
    assert [row["id"] for row in context["summaries"]] == [made["id"]]


async def test_s0_11_a_summary_covers_the_events_from_the_last_one_to_the_cut(
    client: httpx.AsyncClient, worker: None, model: Summarizers
) -> None:
    agent = await split_turn_session(client)
    await compact(client)
    await agent.context(force=True)
    first = await live_summary(client)
    model.reset()
    model.default = by_part(ok(WHOLE), ok(PREFIX))
    await agent.post(*({"type": "user.message", "content": f"later-{turn}. {TEXT}"} for turn in range(24)))
    await compact(client)
    second = await live_summary(client)
    asked = sorted(model.requests, key=is_prefix)[0]
    assert (asked.max_tokens, asked.temperature) == (640, 0.2)
    assert f"<previous-summary>\n{first['text']}\n</previous-summary>" in asked.prompt
    conversation = asked.prompt.split("</conversation>")[0]
    assert "first question" not in conversation
    assert f"said-{first['to_seq'] - 4}." not in conversation and f"said-{first['to_seq'] - 3}." in conversation
    assert (second["from_seq"], second["sources"]) == (1, [first["id"]])
    assert second["to_seq"] > first["to_seq"]


async def test_s0_11_a_turns_beginning_is_divided_to_fit_the_model(
    client: httpx.AsyncClient, worker: None, model: Summarizers
) -> None:
    await long_turn(client, model, 40_000)
    taken = [asked.prompt for asked in model.requests if is_prefix(asked) and len(asked.prompt) < 40_000]
    assert len(taken) > 1
    assert all("THE QUESTION" in prompt for prompt in taken)
    assert ["<previous-summary>" in prompt for prompt in taken] == [False, *(True for _ in taken[1:])]
    numbers = [int(found) for prompt in taken for found in re.findall(r"said-(\d+)\.", prompt)]
    assert numbers == list(range(len(numbers)))
    refused = [asked.prompt for asked in model.requests if len(asked.prompt) >= 40_000]
    assert len(refused) == len(set(refused)) > 0
    assert {run["state"] for run in await runs(client)} <= {"succeeded", "skipped"}


async def test_s0_11_later_events_of_a_split_turn_are_given_with_its_request(
    client: httpx.AsyncClient, worker: None, model: Summarizers
) -> None:
    agent = await long_turn(client, model, 1_000_000)
    model.reset()
    await say(agent, 400, 440)
    await compact(client)
    assert model.requests
    for asked in model.requests:
        assert not is_prefix(asked)
        assert asked.prompt.startswith("<conversation>\n[User]: THE QUESTION\n\n[The messages in between")
    assert "THE QUESTION" in (await live_summary(client))["text"]


async def test_s0_11_a_turns_beginning_gets_half_the_tokens(
    client: httpx.AsyncClient, worker: None, model: Summarizers
) -> None:
    await split_turn_session(client)
    await compact(client)
    assert [(asked.max_tokens, asked.temperature) for asked in model.parts()] == [(640, 0.2), (320, 0.2)]


async def test_s0_11_without_new_history_the_previous_summary_is_used_as_it_is(
    client: httpx.AsyncClient, worker: None, model: Summarizers
) -> None:
    agent = await begin(client)
    for _ in range(6):
        await agent.user(f"before. {TEXT}")
    await agent.user(f"THE QUESTION {TEXT}")
    await say(agent, 1, 18)
    for turn in range(5):  # six turns that take more than seven tenths, so all of them are kept
        await agent.user(f"turn-{turn}. {TEXT * 3}")
    await agent.context()
    await compact(client)
    first = await live_summary(client)
    assert (first["to_seq"], first["split_turn"]) == (6, None)
    model.reset()
    model.queue(ok(PREFIX))
    await agent.user(f"the next {TEXT * 8}")  # six turns that take less, so the cut falls into the turn before them
    await compact(client)
    second = await live_summary(client)
    assert second["split_turn"] == 7
    assert second["text"].startswith(f"{first['text']}\n\n---\n\n")
    assert ["THE QUESTION" in asked.prompt for asked in model.requests] == [True]


async def test_s0_11_without_any_history_the_summary_says_so(
    client: httpx.AsyncClient, worker: None, model: Summarizers
) -> None:
    agent = await begin(client)
    await agent.user("THE QUESTION")
    await say(agent, 0, 35)
    await agent.post(*({"type": "user.message", "content": "and then?"} for _ in range(6)))
    await agent.context()
    model.queue(ok(PREFIX))
    await compact(client)
    assert (await live_summary(client))["text"].startswith("No prior history.\n\n---\n\n**Turn Context (split turn):**")
    assert "THE QUESTION" in request_text(
        await agent.context(force=True)
    )  # the running turn's user message stays too (I9)


@pytest.mark.parametrize("answers", [(empty(), ok(PREFIX)), (ok(WHOLE), empty())])
async def test_s0_11_an_empty_answer_of_either_request_changes_nothing(
    client: httpx.AsyncClient, worker: None, model: Summarizers, answers: tuple[Behaviour, Behaviour]
) -> None:
    agent = await split_turn_session(client)
    before = await agent.context()
    model.default = by_part(*answers)
    run = await compact(client)
    assert (run["state"], run["summaries"]) == ("failed", [])
    assert "empty" in run["error"]
    assert await summaries(client) == []
    assert (await agent.context())["sha256"] == before["sha256"]
    assert {row["disposition"] for row in await check_coverage(client)} == {"verbatim"}


async def test_s0_12_the_request_contains_the_conversation_and_the_sections(
    client: httpx.AsyncClient, worker: None, model: Summarizers
) -> None:
    agent = await begin(client)
    await agent.post({"type": "system.prompt", "content": "THE SYSTEM PROMPT"})
    await agent.user("please look")
    await agent.assistant("looking")
    await agent.calls("grep", f"three hits {TEXT}", {"pattern": "needle", "count": 3})
    await agent.post({"type": "agent.note", "content": "[D] decided for the second one"})
    await agent.post({"type": "user.message", "content": "a secret", "replacement": "something was here"})
    for turn in range(36):
        await agent.user(f"turn-{turn}. {TEXT}")
    await agent.context()
    await compact(client, focus="the second needle")
    prompt = model.requests[0].prompt
    assert prompt.startswith("<conversation>\n[User]: please look\n\n[Assistant]: looking\n\n")
    assert '[Assistant tool calls]: grep(pattern="needle", count=3)' in prompt
    assert "[Tool result]: <tool-output" in prompt and "three hits" in prompt
    assert "[Internal Note]: [D] decided for the second one" in prompt
    assert "[User]: something was here" in prompt and "a secret" not in prompt
    assert "Additional focus: the second needle" in prompt
    assert "THE SYSTEM PROMPT" not in prompt and "<previous-summary>" not in prompt
    headings = [line.strip("# ") for line in model.requests[0].system.splitlines() if line.startswith("#")]
    assert headings == [
        "Goal",
        "Constraints & Preferences",
        "Progress",
        "Done",
        "In Progress",
        "Not Started",
        "Blocked",
        "Key Decisions",
        "Next Steps",
        "Critical Context",
    ]


async def test_s0_12_the_request_explains_the_tags_of_notes(
    client: httpx.AsyncClient, worker: None, model: Summarizers
) -> None:
    await split_turn_session(client)
    await compact(client)
    history, prefix = model.parts()
    for asked in (history, prefix):
        [tag_line] = [line for line in asked.system.splitlines() if "[Internal Note]" in line]
        assert all(tag in tag_line for tag in ("[P]", "[D]", "[S]"))
        assert "matter most" in tag_line
    for tag, heading in (("[P]", "Constraints & Preferences"), ("[D]", "Key Decisions"), ("[S]", "Critical Context")):
        assert re.search(rf"{re.escape(tag)}[^\[]*{heading}", history.system)


async def test_s0_12_extractive_summaries_have_sections_for_tagged_notes_and_open_tasks(
    client: httpx.AsyncClient, worker: None
) -> None:
    document = await preset(client, "timeline", summarizer="extractive")
    agent = await Agent.begin(client, document, max_tokens=WINDOW)
    await agent.user("Make the report ready")
    states = {"measure the tide": "completed", "draw the curve": "in_progress", "print the report": "pending"}
    todos = [{"content": text, "status": state} for text, state in states.items()]
    await agent.calls("TodoWrite", "ok", {"todos": todos})
    await agent.post(
        {"type": "agent.note", "content": "[S] heights come in feet"},
        {"type": "agent.note", "content": "[P] two decimals are preferred\n[D] the northern gauge is used"},
        {"type": "agent.note", "content": "this one has no tag"},
    )
    for _ in range(10):
        await agent.post(*({"type": "user.message", "content": f"go on. {TEXT}"} for _ in range(50)))
    context = await agent.context(wait_ms=WAIT_MS)
    text = (await live_summary(client))["text"]
    assert [row["id"] for row in context["summaries"]] == [(await live_summary(client))["id"]]
    sections = dict(re.findall(r"^#+ ([^\n]+)\n((?:- [^\n]+\n?)*)", text, re.M))
    assert "- print the report" in sections["Not Started"]
    assert "draw the curve" in sections["In Progress"] and "draw the curve" not in sections["Not Started"]
    assert "two decimals are preferred" in sections["Constraints & Preferences"]
    assert "the northern gauge is used" in sections["Key Decisions"]
    assert "heights come in feet" in sections["Critical Context"]


async def test_s0_12_the_request_for_a_turns_beginning_has_its_own_sections(
    client: httpx.AsyncClient, worker: None, model: Summarizers
) -> None:
    await split_turn_session(client)
    await compact(client)
    _, asked = model.parts()
    assert asked.prompt.startswith("<conversation>\n[User]: THE QUESTION\n\n[Assistant]: said-0.")
    headings = [line.strip("# ") for line in asked.system.splitlines() if line.startswith("#")]
    assert headings == ["Original Request", "Early Progress", "Context for Suffix"]


async def work_then_talk(client: httpx.AsyncClient, turns: int = 40) -> Agent:
    """Append work with files and a search, then `turns` long turns so that it is cut away."""
    agent = await begin(client)
    await agent.user(f"go {TEXT}")
    await agent.calls("fs.read", "text", {"path": "b.py"})
    await agent.calls("fs.read", "text", {"paths": ["a.py", "c.py"]})
    await agent.calls("fs.write", "ok", {"filepath": "out.py", "content": "x"})
    await agent.calls("apply_patch", "ok", {"file": "c.py"})
    await agent.calls("memsearch", "notes/1.md: blue\nnotes/2.md: red", {"query": "which colour"})
    await agent.post({"type": "user.message", "content": TEXT, "replacement": "[a long text]"})
    about = {"visibility": "external", "sources_used": ["so:1", "so:2"]}
    plot = {"path": "out/plot.png", "mime": "image/png", "metadata": about}
    await agent.post({"type": "assistant.message", "content": "made", **plot})
    await agent.calls("shell", "drawn in 3 s", {"command": "make plot"})
    for turn in range(turns):
        await agent.user(f"turn-{turn}. {TEXT}")
    await agent.context()
    return agent


async def test_s0_13_files_are_appended_by_name(client: httpx.AsyncClient, worker: None, model: Summarizers) -> None:
    await work_then_talk(client)
    model.queue(ok(WHOLE))
    await compact(client)
    text = (await live_summary(client))["text"]
    assert text.startswith(WHOLE)
    assert "<read-files>\na.py\nb.py\n</read-files>" in text
    assert "<modified-files>\nc.py\nout.py\n</modified-files>" in text


async def test_s0_13_without_files_there_are_no_lists(client: httpx.AsyncClient, worker: None) -> None:
    await whole(client)
    await compact(client)
    assert "files>" not in (await live_summary(client))["text"]


async def test_s0_14_the_digest(client: httpx.AsyncClient, worker: None) -> None:
    agent = await work_then_talk(client)
    await compact(client)
    digest = (await live_summary(client))["digest"]
    log = await agent.log()
    hidden = next(event["seq"] for event in log if event.get("replacement"))
    assert digest["hidden"] == [[hidden, "[a long text]"]]
    plot = {"path": "out/plot.png", "mime": "image/png", "seq": hidden + 1, "turn": 2, "tool": None, "call_id": None}
    assert digest["artifacts"] == [{**plot, "visibility": "external", "sources_used": ["so:1", "so:2"]}]
    assert {row["tool"]: row["results"] for row in digest["outputs"]} == {
        "fs.read": 2,
        "fs.write": 1,
        "apply_patch": 1,
        "memsearch": 1,
        "shell": 1,
    }
    [search], [command] = digest["searches"], digest["commands"]
    assert (command["text"], command["state"]) == ("make plot", "ok")
    for made in (search, command):
        call, result = log[made["seq"] - 1], log[made["result_seq"] - 1]
        assert made["call_id"] == call["call_id"] == result["call_id"]
    assert (search["tool"], search["query"], search["hits"]) == ("memsearch", "which colour", 2)
    assert search["found"] == ["notes/1.md", "notes/2.md"]
    assert (sorted(digest["files_read"]), sorted(digest["files_modified"])) == (["a.py", "b.py"], ["c.py", "out.py"])


async def test_s0_15_what_is_summarized_stays_in_the_log(client: httpx.AsyncClient, worker: None) -> None:
    agent = await whole(client)
    await compact(client)
    context = await agent.context(force=True)
    assert first_words(context)[0] == "[The" and first_words(context)[1] != "turn-0."
    assert [event["content"].split()[0] for event in await agent.log()] == [f"turn-{n}." for n in range(40)]
    assert {row["disposition"] for row in await check_coverage(client)} == {"summarized", "verbatim"}


async def test_s0_16_a_run_records_tokens_before_and_after(client: httpx.AsyncClient, worker: None) -> None:
    agent = await whole(client)
    before = (await agent.context())["tokens"]["estimate"]
    run = await compact(client)
    after = (await agent.context(force=True))["tokens"]["estimate"]
    assert (run["state"], run["from_seq"]) == ("succeeded", 1)
    assert abs(run["tokens_before"] - before) <= before // 10
    assert abs(run["tokens_after"] - after) <= before // 10
    assert run["tokens_after"] < run["tokens_before"]


async def test_s0_16_nothing_to_compact_is_skipped(client: httpx.AsyncClient, worker: None) -> None:
    agent = await begin(client)
    await agent.user("small")
    await agent.context()
    run = await compact(client)
    assert (run["state"], run["error"]) == ("skipped", "nothing to compact")
    assert (run["tokens_before"], run["tokens_after"]) == (0, 0)


async def test_s0_16_a_summary_that_is_not_shorter_is_discarded(
    client: httpx.AsyncClient, worker: None, model: Summarizers
) -> None:
    agent = await whole(client)
    before = await agent.context()

    def longer(asked: ReceivedRequest) -> str:
        return WHOLE + "\n- " + "more and more " * 2_000

    model.default = ok(longer)
    run = await compact(client)
    assert (run["state"], await summaries(client)) == ("failed", [])
    assert "shorter" in run["error"] or "long" in run["error"]
    assert (await agent.context())["sha256"] == before["sha256"]


async def test_s1_05_a_summary_is_kept_beside_the_log(client: httpx.AsyncClient, worker: None) -> None:
    agent = await split_turn_session(client)
    log = await agent.log()
    await compact(client)  # in the middle of a turn
    made = await live_summary(client)
    assert await agent.log() == log
    assert all(made[name] for name in ("text", "turns", "created_at", "events", "split_turn", "digest"))
    assert (await runs(client))[0]["summaries"] == [made["id"]]
    context = await agent.context(force=True)
    assert json.dumps(made["text"], ensure_ascii=False)[1:-1] in request_text(context)
    assert "said-0." not in request_text(context)


@pytest.mark.wing("recall")
@BY_TURN
async def test_s0_30_what_the_digest_names_can_be_read_again_by_that_name(
    client: httpx.AsyncClient, worker: None, by_turn: bool
) -> None:
    """Ten windows follow the named events, so each summary inherits the digest of the one before."""
    agent = await work_then_talk(client, 0)
    for events in batches(
        [[{"type": "user.message", "content": f"turn-{n}. {TEXT * 4}"}] for n in range(130)], by_turn
    ):
        await agent.post(*events)
        if by_turn:
            await agent.context(wait_ms=WAIT_MS)
    for view in ("main", "another"):
        context = await agent.context(view=view, wait_ms=WAIT_MS)
        assert evicted_seqs(context, "summarized") and not evicted_seqs(context, "dropped")
        await named_can_be_recalled(client, context)


async def named_can_be_recalled(client: httpx.AsyncClient, context: Json) -> None:
    made = await live_summary(client)
    assert [row["id"] for row in context["summaries"]] == [made["id"]]
    digest = made["digest"]
    named = [*digest["files_read"], *digest["files_modified"], *(row["path"] for row in digest["artifacts"])]
    assert len(named) >= 5
    for path in named:
        asked = {"paths": [path], "call_id": context["call_id"]}
        items = (await client.post("/v1/sessions/s/recall", json=asked)).json()["items"]
        assert any(item.get("seq", made["to_seq"]) <= made["to_seq"] and item.get("content") for item in items), items
    calls = [*digest["searches"], *digest["commands"]]
    assert {row["tool"] if "tool" in row else row["text"] for row in calls} == {"memsearch", "make plot"}
    for row in calls:
        asked = {"seqs": [row["seq"], row["result_seq"]], "call_id": context["call_id"]}
        call, result = (await client.post("/v1/sessions/s/recall", json=asked)).json()["items"]
        assert (call["visible"], result["visible"], result["call_seq"]) == (False, False, call["seq"])
        assert row.get("query", row.get("text")) in call["content"] and result["content"]
