"""Lists of calls, manifests, histories and diffs over HTTP, and the retention of call records."""

import asyncio
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
from click.testing import Result
from typer.testing import CliRunner

from app import worker
from app.cli.main import app
from app.core.plan.state.wording import RENDER_VERSION
from app.runtime import wiring
from app.runtime.settings import Settings
from app.store import deletion
from app.store.engine import Database
from tests.conftest import serving
from tests.support.pooler import pooled

Json = dict[str, Any]
LONG = "what the file says, line by line, and then some more of it\n" * 40
POLICY = {"reserve_tokens": 0, "retention": {"keep_last": 1, "min_tokens": 50}, "evict": "on_pressure"}


class Agent:
    """A session over HTTP."""

    def __init__(self, client: httpx.AsyncClient, name: str = "s") -> None:
        self.client, self.path, self.turns = client, f"/v1/sessions/{name}", 0

    async def turn(self) -> None:
        """Append a user message, a call, its result and a reply: four events."""
        call = f"c{self.turns}"
        events = [
            {"type": "user.message", "content": f"What is in file {self.turns}?"},
            {"type": "tool.call", "call_id": call, "tool": "read", "arguments": {"path": f"f{self.turns}.txt"}},
            {"type": "tool.result", "call_id": call, "content": LONG},
            {"type": "assistant.message", "content": "A lot."},
        ]
        answer = await self.client.post(f"{self.path}/events", json={"events": events})
        assert answer.status_code == 201, answer.text
        self.turns += 1

    async def context(self, **asks: Any) -> Json:
        body = {"format": "openai", "max_tokens": 3_000, "policy": POLICY, **asks}
        answer = await self.client.post(f"{self.path}/context", json=body)
        assert answer.status_code == 200, answer.text
        found: Json = answer.json()
        return found

    async def get(self, path: str, **params: Any) -> Json:
        answer = await self.client.get(f"{self.path}{path}", params=params)
        assert answer.status_code == 200, answer.text
        found: Json = answer.json()
        return found


@pytest.fixture
def agent(client: httpx.AsyncClient) -> Agent:
    return Agent(client)


@pytest.mark.wing("audit")
async def test_the_list_is_newest_first_and_paged(agent: Agent) -> None:
    sent = []
    for number in range(5):
        await agent.turn()
        sent.append((await agent.context(view=("main", "title")[number % 2]))["call_id"])
    whole = await agent.get("/calls")
    assert [row["call_id"] for row in whole["items"]] == sent[::-1]
    assert whole["next_cursor"] is None
    first = await agent.get("/calls", limit=2)
    second = await agent.get("/calls", limit=2, cursor=first["next_cursor"])
    assert [row["call_id"] for row in first["items"] + second["items"]] == sent[:0:-1]
    assert [row["call_id"] for row in (await agent.get("/calls", view="title"))["items"]] == [sent[3], sent[1]]
    row = whole["items"][0]
    assert (row["session"], row["view"], row["head"], row["overflow"], row["retry_of"]) == (
        "s",
        "main",
        20,
        False,
        None,
    )
    assert (await agent.client.get("/v1/sessions/nobody/calls")).status_code == 404
    assert (await agent.client.get("/v1/sessions/s/calls?cursor=x")).status_code == 422


@pytest.mark.wing("audit")
async def test_the_manifest_names_every_input(agent: Agent) -> None:
    for _ in range(4):
        await agent.turn()
    policy = {**POLICY, "injection_reserve_tokens": 100}
    sent = await agent.context(policy=policy, injections=[{"name": "hook", "content": "remember"}])
    found = await agent.get(f"/calls/{sent['call_id']}")
    same = ("call_id", "session", "view", "head", "epoch", "format", "model", "policy", "tokens", "summaries", "cache")
    assert {name: found[name] for name in same} == {name: sent[name] for name in same}
    assert found["evictions"] == sent["evictions"]
    assert found["injections"] == [{"name": "hook", "chars": 8}]
    said = (found["render_version"], found["cause"], found["outcome"], found["retry_of"])
    assert said == (RENDER_VERSION, "budget", None, None)
    assert found["sha256"] == sent["sha256"]
    runs = [(run["from_seq"], run["to_seq"], run["disposition"]) for run in found["dispositions"]]
    stubbed = [first for first, last, word in runs for _ in range(first, last + 1) if word == "stubbed"]
    assert stubbed == [3, 7, 11]
    assert [seq for first, last, _ in runs for seq in range(first, last + 1)] == list(range(1, 17))


async def test_a_record_stays_small_however_long_the_log(agent: Agent, database: Database) -> None:
    await agent.turn()
    await agent.context()
    short = await database.fetchrow("SELECT max(pg_column_size(manifest)) AS n FROM model_calls")
    for _ in range(80):
        await agent.turn()
        sent = await agent.context(max_tokens=20_000)
    assert sum(row["to_seq"] - row["from_seq"] + 1 for row in sent["evictions"]) > 200
    row = await database.fetchrow(
        "SELECT max(pg_column_size(m)) AS n, max(pg_column_size(manifest)) AS j FROM model_calls m"
    )
    assert row is not None
    assert short is not None
    assert row["n"] <= 2_048
    assert row["j"] <= short["n"] + 50


@pytest.mark.wing("compare")
async def test_the_history_names_when_an_event_was_evicted_and_why(agent: Agent) -> None:
    calls = []
    for _ in range(5):
        await agent.turn()
        calls.append(await agent.context())
    items = (await agent.get("/events/3/history"))["items"]
    assert [item["call_id"] for item in items] == [call["call_id"] for call in calls]
    assert items[0]["disposition"] == "verbatim"
    gone = next(item for item in items if item["disposition"] == "stubbed")
    assert (gone["reducer"], gone["cause"], gone["view"]) == ("retention", "budget", "main")
    assert gone["reason"]
    for item, call in zip(items, calls, strict=True):
        shown = LONG in [message.get("content") for message in call["request"]["messages"][:3]]
        assert (item["disposition"] == "verbatim") == shown
        assert item["epoch"] == call["epoch"]
    first = await agent.get("/events/3/history", limit=2)
    rest = await agent.get("/events/3/history", cursor=first["next_cursor"])
    assert first["items"] + rest["items"] == items
    assert [i["call_id"] for i in (await agent.get("/events/17/history"))["items"]] == [calls[-1]["call_id"]]
    assert (await agent.get("/events/3/history", view="title"))["items"] == []
    for path in ("/events/99/history", "/events/0/history"):
        assert (await agent.client.get(f"/v1/sessions/s{path}")).status_code in (404, 422)


@pytest.mark.wing("compare")
async def test_the_history_names_authors_and_redaction(agent: Agent) -> None:
    for _ in range(4):
        await agent.turn()
    await agent.client.post(
        "/v1/sessions/s/events", json={"events": [{"type": "agent.note", "content": "psst", "author": "scout"}]}
    )
    await agent.context(policy={**POLICY, "authors": ["lead"]}, max_tokens=30_000)
    assert (await agent.get("/events/17/history"))["items"][0]["reason"] == "author"
    await agent.context(max_tokens=30_000)
    await agent.client.delete("/v1/sessions/s/events/17")
    await agent.context(max_tokens=30_000)
    items = (await agent.get("/events/17/history"))["items"]
    assert [item["disposition"] for item in items] == ["not_rendered", "verbatim", "redacted"]
    assert items[-1]["cause"] == "redaction"


@pytest.mark.wing("compare")
async def test_a_call_does_not_differ_from_itself(agent: Agent) -> None:
    await agent.turn()
    sent = await agent.context()
    found = await agent.get(f"/calls/{sent['call_id']}/diff/{sent['call_id']}")
    assert (found["identical"], found["first_difference"], found["changes"]) == (True, None, [])
    assert found["tokens"]["by_cause"] == {}


@pytest.mark.wing("compare")
async def test_the_difference_names_the_first_block_and_every_decision(agent: Agent) -> None:
    await agent.turn()
    a = await agent.context()
    while True:
        await agent.turn()
        b = await agent.context()
        if b["evictions"]:
            break
    found = await agent.get(f"/calls/{a['call_id']}/diff/{b['call_id']}")
    assert not found["identical"]
    first = found["first_difference"]
    assert (first["a"]["seq"], first["a"]["kind"], first["a"]["replaced"]) == (3, "result", False)
    assert (first["b"]["seq"], first["b"]["replaced"]) == (3, True)
    assert first["a"]["begins"] == LONG[:240]
    changes = {(row["from_seq"], row["to_seq"]): row for row in found["changes"]}
    stubbed = changes[3, 3]
    assert (stubbed["change"], stubbed["from"], stubbed["to"]) == ("changed", "verbatim", "stubbed")
    assert (stubbed["reducer"], stubbed["epoch"], stubbed["cause"]) == ("retention", b["epoch"], "budget")
    assert stubbed["tokens"] < 0
    added = [row for row in found["changes"] if row["cause"] == "appended"]
    assert added and all((row["change"], row["from"], row["to"]) == ("added", None, "verbatim") for row in added)
    by_cause = found["tokens"]["by_cause"]
    assert by_cause["budget"] < 0 < by_cause["appended"]
    assert sum(by_cause.values()) == found["tokens"]["b"] - found["tokens"]["a"]
    back = await agent.get(f"/calls/{b['call_id']}/diff/{a['call_id']}")
    assert {(r["from_seq"], r["to_seq"], r["cause"]) for r in back["changes"]} == {
        (r["from_seq"], r["to_seq"], r["cause"]) for r in found["changes"]
    }
    assert back["tokens"]["by_cause"] == {cause: -tokens for cause, tokens in by_cause.items()}


@pytest.mark.wing("compare")
async def test_calls_of_other_views_and_formats_are_compared_by_blocks(agent: Agent) -> None:
    for _ in range(3):
        await agent.turn()
    a = await agent.context(max_tokens=30_000)
    b = await agent.context(max_tokens=30_000, view="title", format="anthropic")
    found = await agent.get(f"/calls/{a['call_id']}/diff/{b['call_id']}")
    assert (found["first_difference"], found["changes"]) == (None, [])
    assert not found["identical"], "the same blocks in two formats are two requests"
    small = await agent.context(view="small")
    found = await agent.get(f"/calls/{a['call_id']}/diff/{small['call_id']}")
    assert not found["identical"]
    assert {row["cause"] for row in found["changes"]} == {"budget"}


@pytest.mark.wing("audit")
@pytest.mark.wing("compare")
async def test_a_summary_in_place_of_events_is_in_the_diff(agent: Agent, database: Database, database_url: str) -> None:
    for _ in range(6):
        await agent.turn()
    a = await agent.context(max_tokens=30_000, policy=FOLDING)
    stop = asyncio.Event()
    working = asyncio.create_task(worker.run(database_url, stop, wiring.worker_work(pooled(Settings(), database_url))))
    answer = await agent.client.post("/v1/sessions/s/compactions", json={"wait_ms": 20_000})
    stop.set()
    await working
    assert answer.json()["state"] == "succeeded", answer.text
    b = await agent.context(max_tokens=30_000, policy=FOLDING, force=True)
    assert b["summaries"]
    one = b["summaries"][0]
    found = await agent.get(f"/calls/{a['call_id']}/diff/{b['call_id']}")
    removed = next(row for row in found["changes"] if row["to"] == "summarized")
    assert (removed["summary"], removed["reducer"], removed["cause"], removed["change"]) == (
        one["id"],
        "fold",
        "forced",
        "removed",
    )
    assert sum(found["tokens"]["by_cause"].values()) == found["tokens"]["b"] - found["tokens"]["a"]
    item = (await agent.get(f"/events/{one['from_seq']}/history"))["items"][-1]
    assert (item["disposition"], item["summary"]) == ("summarized", one["id"])
    for query, expected in ({"summary": one["id"]}, [b["call_id"]]), ({"summary": str(uuid4())}, []):
        page = (await agent.client.get("/v1/audit/calls", params=query)).json()
        assert [row["call_id"] for row in page["items"]] == expected
    other_session = {"summary": one["id"], "session": "t"}
    assert (await agent.client.get("/v1/audit/calls", params=other_session)).json()["items"] == []


FOLDING = {
    "reserve_tokens": 0,
    "retention": {"keep_last": 1, "min_tokens": 50},
    "summarize": {"chunk_tokens": 300, "max_tokens": 300, "max_ratio": 1.0, "keep_ratio": 0.01},
}


@pytest.mark.parametrize(("server", "policy", "kept"), [(90, None, 90), (90, 30, 90), (90, 400, 400), (0, 30, None)])
async def test_call_records_are_kept_for_the_longer_retention(
    database_url: str, database: Database, server: int, policy: int | None, kept: int | None
) -> None:
    async with (
        serving(Settings(calls_retention_days=server), database_url) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        agent = Agent(client)
        await agent.turn()
        await agent.context(policy={**POLICY, "retain_calls_days": policy})
        row = await database.fetchrow("SELECT expires_at, expires_at - created_at AS kept FROM model_calls")
    assert row is not None
    assert (row["kept"].days if row["kept"] else None) == kept


@pytest.mark.wing("audit")
async def test_only_expired_call_records_are_purged(
    agent: Agent, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await agent.turn()
    ids = [(await agent.context())["call_id"] for _ in range(5)]
    monkeypatch.setattr(deletion, "ROWS_PER_STATEMENT", 2)
    assert await deletion.purge_calls(database) == 0
    async with database.transaction() as tx:
        await tx.execute("SET LOCAL session_replication_role = replica")
        await tx.execute(
            "UPDATE model_calls SET expires_at = now() - interval '1 second' WHERE call_id = ANY(:ids::uuid[])",
            ids=ids[:3],
        )
        await tx.execute("UPDATE model_calls SET expires_at = NULL WHERE call_id = :id", id=UUID(ids[3]))
    assert await deletion.purge_calls(database) == 3
    assert [row["call_id"] for row in (await agent.get("/calls"))["items"]] == ids[:2:-1]
    assert (await agent.client.get(f"/v1/sessions/s/calls/{ids[0]}")).status_code == 404
    assert (await agent.context())["call_id"]


@pytest.mark.wing("audit")
@pytest.mark.wing("compare")
@pytest.mark.usefixtures("database_url")
async def test_the_command_explains_an_event(agent: Agent) -> None:
    while not (sent := await _after_a_turn(agent))["evictions"]:
        pass
    url = str(agent.client.base_url)

    def explain(*args: str) -> Result:
        return CliRunner().invoke(app, ["explain", *args, "--url", url])

    def output_lines(done: Result) -> list[str]:  # without the server's log, which goes to the same stream
        return [line for line in done.output.splitlines() if "] request " not in line]

    done = await asyncio.to_thread(explain, "s", "3")
    assert done.exit_code == 0, done.output
    lines = output_lines(done)
    assert lines[0].startswith("Event 3, tool.result, turn 1, ")
    assert lines[2].endswith("epoch 1 (start): shown whole")
    assert f"epoch {sent['epoch']} (budget): shown as a stub, by retention: " in lines[3]
    done = await asyncio.to_thread(explain, "s", "99")
    assert (done.exit_code, output_lines(done)) == (1, ["palimpsest: session 's' has no event 99"])


async def _after_a_turn(agent: Agent) -> Json:
    await agent.turn()
    return await agent.context()
