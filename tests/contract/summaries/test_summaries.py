"""Summaries over HTTP: written ahead of need, folded when the budget requires it, and proven by coverage."""

import asyncio
import json
import re
from typing import Any

import httpx
import pytest

from app.runtime import wiring
from app.runtime.settings import Settings
from app.store.engine import Database
from app.worker import run as run_worker
from tests.conformance.agent import Agent, Json, evicted_seqs, request_text
from tests.support.pooler import pooled
from tests.support.queue import wait_until_idle

SECONDS_MAX = 60
SMALL = {
    "window_tokens": 12_000,
    "reserve_tokens": 0,
    "retention": {"keep_last": None, "superseded": False, "arguments": False},
}
WORDS = "The build of the parser takes the configuration from its own folder and writes the result to disk. " * 6


async def live_summaries(http: httpx.AsyncClient, at_least: int = 1) -> list[Json]:
    """Return the live summaries once there are `at_least` of them."""
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            answer = await http.get("/v1/sessions/s/summaries", params={"live": True})
            items: list[Json] = answer.json()["items"]
            if len(items) >= at_least:
                return items


async def append_turns(agent: Agent, turns: int, first: int = 0) -> None:
    for turn in range(first, first + turns):
        await agent.user(f"question {turn}: please look at src/part_{turn}.py")
        await agent.calls("read", f"turn {turn}: " + WORDS, {"path": f"src/part_{turn}.py"})
        await agent.assistant(f"Answer {turn}. " + WORDS)


async def check_coverage(http: httpx.AsyncClient, view: str = "main") -> Json:
    answer = await http.get("/v1/sessions/s/coverage", params={"view": view})
    found: Json = answer.json()
    assert found["ok"], found["faults"]
    seqs = [seq for run in found["runs"] for seq in range(run["from_seq"], run["to_seq"] + 1)]
    assert seqs == list(range(1, found["head"] + 1))
    return found


async def test_summaries_are_written_ahead_and_folded_when_they_are_needed(
    client: httpx.AsyncClient, worker: None, database: Database
) -> None:
    agent = await Agent.begin(client, SMALL)
    await append_turns(agent, 10)
    assert (await agent.context())["summaries"] == []
    await append_turns(agent, 13, 10)
    written = await live_summaries(client, 2)
    context = await agent.context()
    assert context["summaries"][0]["id"] == written[0]["id"]
    assert context["tokens"]["by_source"]["summaries"] > 0
    assert context["tokens"]["estimate"] <= context["tokens"]["target"]
    folded = [run for run in context["evictions"] if run["disposition"] == "summarized"]
    assert folded[0]["from_seq"] == 1
    assert folded[0]["reducer"] == "fold"
    assert "src/part_0.py" in request_text(context)
    assert (await check_coverage(client))["runs"][0]["summary"] == written[0]["id"]
    again = await agent.context()
    assert (again["epoch"], again["sha256"]) == (context["epoch"], context["sha256"])
    await wait_until_idle(database)


@pytest.mark.wing("audit")
@pytest.mark.wing("compare")
async def test_events_shown_verbatim_are_in_no_eviction(client: httpx.AsyncClient, worker: None) -> None:
    agent = await Agent.begin(client, SMALL)
    await agent.post({"type": "system.prompt", "content": "answer briefly"})
    await agent.post({"type": "tools", "content": [{"name": "read", "parameters": {"type": "object"}}]})
    await append_turns(agent, 3)
    pinned = await agent.user("never push to main", pinned=True)
    await append_turns(agent, 20, 3)
    everything = (await agent.context(view="all", max_tokens=1_000_000))["call_id"]
    run = (await client.post("/v1/sessions/s/compactions", json={"wait_ms": 30_000})).json()
    assert run["state"] == "succeeded", run
    context = await agent.context()
    assert context["summaries"][-1]["to_seq"] > pinned
    call = (await client.get(f"/v1/sessions/s/calls/{context['call_id']}")).json()
    again = (await client.get(f"/v1/sessions/s/calls/{context['call_id']}/context")).json()
    assert call["evictions"] == context["evictions"] == again["evictions"]
    verbatim = evicted_seqs({"evictions": call["dispositions"]}, "verbatim")
    assert verbatim > {1, 2, pinned} and pinned + 1 not in verbatim
    assert evicted_seqs(context, "summarized") == set(range(1, context["head"] + 1)) - verbatim
    proof = await check_coverage(client)
    assert evicted_seqs({"evictions": proof["runs"]}, "verbatim") == verbatim
    diff = (await client.get(f"/v1/sessions/s/calls/{everything}/diff/{context['call_id']}")).json()
    gone = {seq for one in diff["changes"] for seq in range(one["from_seq"], one["to_seq"] + 1)}
    assert gone == evicted_seqs(context, "summarized")
    history = (await client.get(f"/v1/sessions/s/events/{pinned}/history", params={"view": "main"})).json()["items"]
    assert [item["disposition"] for item in history] == ["verbatim"]
    for seq, shown_in in ((1, True), (pinned, True), (4, False)):
        query = {"session": "s", "evicted_seq": seq}
        found = (await client.get("/v1/audit/calls", params=query)).json()["items"]
        assert (context["call_id"] not in [one["call_id"] for one in found]) == shown_in


async def test_a_summary_names_its_source(client: httpx.AsyncClient, worker: None) -> None:
    agent = await Agent.begin(client, SMALL)
    await append_turns(agent, 12)
    run = (await client.post("/v1/sessions/s/compactions", json={"wait_ms": 30_000})).json()
    assert run["state"] == "succeeded", run
    whole = (await client.get(f"/v1/sessions/s/summaries/{run['summaries'][0]}")).json()
    assert whole["status"] == "live"
    assert whole["from_seq"] == 1
    assert whole["turns"][0] == 1
    assert "src/part_0.py" in whole["text"]
    assert "src/part_0.py" in json.dumps(whole["digest"])
    assert whole["tokens"] < whole["source_tokens"]
    listed = (await client.get("/v1/sessions/s/compactions")).json()["items"]
    assert [row["id"] for row in listed] == [run["id"]]


async def test_an_extractive_summary_lists_what_was_done(client: httpx.AsyncClient, worker: None) -> None:
    agent = await Agent.begin(client, SMALL)
    await agent.user("Mend the tide report.")
    for turn in range(14):
        await agent.calls("Edit", "fine", {"file_path": "/srv/tide.py", "old_string": "x", "new_string": WORDS})
        await agent.calls("Bash", "ok " + WORDS, {"command": f"printf 'done\\nPleaseWait_{turn}' && make test"})
    await agent.assistant("I'll continue fixing the compile errors.")
    await agent.user("go on")
    await append_turns(agent, 4)
    await client.post("/v1/sessions/s/compactions", json={"wait_ms": 30_000})
    made = [(await client.get(f"/v1/sessions/s/summaries/{row['id']}")).json() for row in await live_summaries(client)]
    assert made
    for one in made:
        assert "## " in one["text"] and "(none)" not in one["text"] and "### Blocked" not in one["text"]
    text = "\n".join(one["text"] for one in made)
    assert "Changed tide.py" in text and "[ok] make test" in text
    names = [name for one in made for name, _ in one["digest"]["identifiers"]]
    assert "PleaseWait_0" in names and not any(name.startswith("nPlease") for name in names)


async def test_a_compaction_without_room_for_a_context_says_so(client: httpx.AsyncClient, worker: None) -> None:
    agent = await Agent.begin(client, {"reserve_tokens": 0})
    await agent.user("hello")
    await agent.context(max_tokens=4_000)
    await client.put("/v1/sessions/s", json={"outside_tokens": 5_000})
    run = (await client.post("/v1/sessions/s/compactions", json={"wait_ms": 30_000})).json()
    sizes = "5000 tokens are sent beside the request, of a window of 4000 that leaves 4000"
    assert (run["state"], run["error"]) == ("skipped", f"no context fits its window: {sizes}")


async def test_nothing_to_compact_is_no_error(client: httpx.AsyncClient, worker: None) -> None:
    agent = await Agent.begin(client, SMALL)
    await agent.user("hello")
    answer = await client.post("/v1/sessions/s/compactions", json={"wait_ms": 30_000})
    run = answer.json()
    assert (answer.status_code, run["state"], run["error"]) == (200, "skipped", "nothing to compact")
    again = await client.post(f"/v1/sessions/s/compactions/{run['id']}:retry")
    # The worker may have finished the retry already; a run that is not retried is 409.
    assert (again.status_code, again.json()["state"] in ("scheduled", "running", "skipped")) == (202, True)


async def test_a_wait_that_times_out_gets_an_extractive_summary(
    client: httpx.AsyncClient,
) -> None:
    agent = await Agent.begin(client, SMALL)
    await append_turns(agent, 30)
    context = await agent.context(wait_ms=0)
    assert context["summaries"] != []
    assert context["tokens"]["estimate"] <= context["tokens"]["target"]
    await check_coverage(client)


async def test_without_wait_ms_a_context_does_not_wait(client: httpx.AsyncClient) -> None:
    agent = await Agent.begin(client, SMALL)
    await append_turns(agent, 30)
    context = await agent.context()
    assert context["summaries"] == []
    assert context["compaction"]["state"] == "scheduled"
    assert context["tokens"]["estimate"] <= context["tokens"]["target"]
    await check_coverage(client)


async def test_dropped_events_are_folded_once_their_summary_exists(
    client: httpx.AsyncClient, database_url: str
) -> None:
    agent = await Agent.begin(client, SMALL)
    await append_turns(agent, 30)
    dropped = await agent.context()
    assert any(run["disposition"] == "dropped" for run in dropped["evictions"])
    stop = asyncio.Event()
    running = asyncio.create_task(run_worker(database_url, stop, wiring.worker_work(pooled(Settings(), database_url))))
    await live_summaries(client)
    await append_turns(agent, 8, 30)
    await live_summaries(client, 2)
    context = await agent.context(force=True)
    stop.set()
    await running
    assert context["summaries"] != []
    assert not any(run["disposition"] == "dropped" and run["from_seq"] == 1 for run in context["evictions"])
    await check_coverage(client)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/sessions/none/summaries"),
        ("GET", "/v1/sessions/none/compactions"),
        ("GET", "/v1/sessions/none/coverage"),
        ("POST", "/v1/sessions/none/compactions"),
        ("GET", "/v1/sessions/s/summaries/019ab000-0000-7000-8000-000000000000"),
        ("GET", "/v1/sessions/s/compactions/019ab000-0000-7000-8000-000000000000"),
        ("POST", "/v1/sessions/s/compactions/019ab000-0000-7000-8000-000000000000:retry"),
    ],
)
async def test_unknown_summaries_and_runs_are_404(client: httpx.AsyncClient, method: str, path: str) -> None:
    await Agent.begin(client, "default")
    body: dict[str, Any] = {"json": {}} if path.endswith("none/compactions") and method == "POST" else {}
    answer = await client.request(method, path, **body)
    assert (answer.status_code, answer.json()["type"]) == (404, "/problems/not-found")


async def test_a_redacted_event_is_erased_from_every_table(
    client: httpx.AsyncClient, worker: None, database: Database
) -> None:
    agent = await Agent.begin(client, SMALL)
    await agent.user("my password is in src/hunter2_secret.py, always keep that in mind")
    await append_turns(agent, 23)
    first = (await live_summaries(client, 2))[0]
    await agent.context()
    assert (await client.delete("/v1/sessions/s/events/1")).status_code == 204
    assert (await client.delete("/v1/sessions/s/events/1")).status_code == 204
    assert (await client.delete("/v1/sessions/s/events/999")).status_code == 404
    await wait_until_idle(database)
    rewritten = await live_summaries(client, 2)
    assert first["id"] not in [row["id"] for row in rewritten]
    assert (first["from_seq"], first["to_seq"]) in [(row["from_seq"], row["to_seq"]) for row in rewritten]
    tombstone = (await client.get("/v1/sessions/s/events/1")).json()
    assert (tombstone["content"], tombstone["redacted"]) == ("[This was erased on request.]", True)
    context = await agent.context()
    assert "hunter2" not in request_text(context)
    tables = await database.fetch("SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'")
    for row in tables:
        found = await database.fetch(f"SELECT t::text AS row FROM {row['table_name']} t")
        assert not [one for one in found if "hunter2" in one["row"]], row["table_name"]
    await check_coverage(client)


async def test_a_cumulative_summary_can_be_rebuilt_from_the_events(client: httpx.AsyncClient, worker: None) -> None:
    rules = {"view": "latest", "rebuild": True, "keep_ratio": 0.02}
    agent = await Agent.begin(client, {**SMALL, "window_tokens": 60_000, "summarize": rules})
    made = []
    for first in (0, 8):
        await append_turns(agent, 8, first)
        run = (await client.post("/v1/sessions/s/compactions", json={"wait_ms": 30_000})).json()
        made += run["summaries"]
    old, new = [(await client.get(f"/v1/sessions/s/summaries/{id}")).json() for id in made]
    assert (old["status"], old["superseded_by"]) == ("superseded", new["id"])
    assert (new["from_seq"], new["sources"], new["status"]) == (1, [old["id"]], "live")
    assert new["source_tokens"] == sum(event["tokens"] for event in await agent.log() if event["seq"] <= new["to_seq"])
    assert "src/part_0.py" in new["text"]
    assert len(await live_summaries(client)) == 1


async def test_a_context_as_of_an_earlier_seq_has_no_later_summary(
    client: httpx.AsyncClient, worker: None, database: Database
) -> None:
    agent = await Agent.begin(client, SMALL)
    await append_turns(agent, 24)
    written = (await live_summaries(client))[0]
    before = await agent.context(at=written["to_seq"] - 1, force=True)
    assert before["summaries"] == []
    assert "question 0" in request_text(before)
    await wait_until_idle(database)


async def test_views_share_summaries_but_not_folds(client: httpx.AsyncClient, worker: None, database: Database) -> None:
    agent = await Agent.begin(client, SMALL)
    await append_turns(agent, 24)
    await live_summaries(client, 2)
    await wait_until_idle(database)
    small = await agent.context(view="title", max_tokens=4_000)
    large = await agent.context(view="all", max_tokens=60_000)
    assert small["summaries"] != []
    assert large["summaries"] == []
    assert (await client.get("/v1/sessions/s/coverage", params={"view": "title"})).json()["ok"]


@pytest.mark.wing("audit")
@pytest.mark.wing("recall")
async def test_a_summarys_header_names_recall_only_if_it_was_given(
    client: httpx.AsyncClient, worker: None, database: Database
) -> None:
    agent = await Agent.begin(client, SMALL)
    await append_turns(agent, 10)
    await agent.context()
    await append_turns(agent, 13, 10)
    await live_summaries(client)
    await wait_until_idle(database)
    for given in (False, True):
        made = await agent.context(view=f"view-{given}", policy={**SMALL, "recall": given}, force=True)
        assert made["summaries"]
        heads = re.findall(r"\[The conversation was compacted: ([^]]*)\]", request_text(made))
        assert len(heads) == 1
        assert all(("recalled" in head) is given for head in heads)
        again = await client.get(f"/v1/sessions/s/calls/{made['call_id']}/context")
        assert (again.status_code, again.json()["sha256"]) == (200, made["sha256"])
        same = await agent.context(view=f"view-{given}")
        assert (same["epoch"], same["cache"]["prefix_sha256"]) == (made["epoch"], made["cache"]["prefix_sha256"])
