"""A recorded call rendered again over HTTP: after redactions, and when its record was tampered with."""

import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from app import tokenizers, wiring
from app.services.counting import Counting
from app.services.tenants import DEFAULT_TENANT
from app.settings import Settings
from app.store.engine import Database
from app.store.sessions import session_key

Json = dict[str, Any]
KEY = session_key(DEFAULT_TENANT, "s")
LONG = "what the file says, line by line, and then some more of it\n" * 40
POLICY = {
    "reserve_tokens": 0,
    "retention": {"keep_last": 1, "min_tokens": 50},
    "summarize": {"chunk_tokens": 300, "max_tokens": 300, "max_ratio": 1.0, "keep_ratio": 0.1},
}


@dataclass
class Told:
    """A session with a context that shows events verbatim, as stubs, and by a summary."""

    client: httpx.AsyncClient
    database: Database

    async def post(self, *events: Json) -> None:
        answer = await self.client.post("/v1/sessions/s/events", json={"events": list(events)})
        assert answer.status_code == 201, answer.text

    async def context(self, **asks: Any) -> Json:
        answer = await self.client.post("/v1/sessions/s/context", json={"format": "openai", **asks})
        assert answer.status_code == 200, answer.text
        found: Json = answer.json()
        return found

    async def again(self, call_id: str) -> httpx.Response:
        return await self.client.get(f"/v1/sessions/s/calls/{call_id}/context")

    async def tamper(self, statement: str, **values: object) -> None:
        """Change a row behind the back of every trigger."""
        async with self.database.transaction() as tx:
            await tx.execute("SET LOCAL session_replication_role = replica")
            await tx.execute(statement, **values)

    async def tampered(self) -> float:
        """What the metric counts."""
        text = (await self.client.get("/metrics")).text
        found = re.search(r"^palimpsest_calls_not_reproducible_total ([0-9.e+]+)$", text, re.MULTILINE)
        assert found is not None
        return float(found[1])


@pytest.fixture
async def told(client: httpx.AsyncClient, database: Database) -> AsyncIterator[Told]:
    answer = await client.put("/v1/sessions/s", json={"policy": POLICY})
    assert answer.status_code == 201, answer.text
    told = Told(client, database)
    await told.post({"type": "system.prompt", "content": "You read files."})
    for turn in range(6):
        call = f"c{turn}"
        await told.post(
            {"type": "user.message", "content": f"What is in file {turn}? The password is pass-{turn}."},
            {"type": "tool.call", "call_id": call, "tool": "read", "arguments": {"path": f"f{turn}.txt"}},
            {"type": "tool.result", "call_id": call, "content": f"secret-{turn} begins it\n{LONG}"},
            {"type": "assistant.message", "content": f"It says a lot, file {turn}."},
        )
    yield told


async def summarize(told: Told) -> None:
    """What a view of so small a window has no room for."""
    await told.context(max_tokens=1_500)
    settings = Settings()
    counting = Counting(tokenizers.load(settings.tiktoken_cache_dir))
    compaction = wiring.compaction(settings, told.database, counting)
    await compaction.run(KEY, DEFAULT_TENANT)
    await compaction.aclose()


async def test_a_call_is_the_same_long_after(told: Told) -> None:
    sent = await told.context(max_tokens=3_000)
    assert sent["evictions"]
    await summarize(told)
    await told.context(max_tokens=1_500)
    await told.context(max_tokens=2_000, policy={"reserve_tokens": 10, "authors": []}, model="gpt-4o")
    await told.post({"type": "system.prompt", "content": "You do something else now."})
    found = (await told.again(sent["call_id"])).json()
    assert (found["reproduced"], found["redacted"]) == (True, [])
    same = ("request", "sha256", "tokens", "summaries", "evictions", "cache", "head", "epoch", "policy", "call_id")
    assert {name: found[name] for name in same} == {name: sent[name] for name in same}
    assert found["recorded_sha256"] == sent["sha256"]


async def test_without_such_a_call_nothing_is_found(told: Told) -> None:
    sent = await told.context(max_tokens=3_000)
    for path in (f"/v1/sessions/t/calls/{sent['call_id']}", f"/v1/sessions/s/calls/{KEY}"):
        for tail in ("", "/context", f"/diff/{KEY}"):
            answer = await told.client.get(path + tail)
            assert (answer.status_code, answer.json()["type"]) == (404, "/problems/not-found")
    assert (await told.client.get("/v1/sessions/s/calls/no-id")).status_code == 422


@pytest.mark.parametrize("seq", [2, 3, 4, 23], ids=["user", "call", "stubbed result", "verbatim"])
async def test_a_redaction_after_a_call_is_named_in_the_place_of_its_bytes(told: Told, seq: int) -> None:
    sent = await told.context(max_tokens=3_000)
    before = await told.tampered()
    assert (await told.client.delete(f"/v1/sessions/s/events/{seq}")).status_code == 204
    answer = await told.again(sent["call_id"])
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert (found["reproduced"], found["redacted"]) == (False, [seq])
    assert found["recorded_sha256"] == sent["sha256"] != found["sha256"]
    gone = {2: "pass-0", 3: "f0.txt", 4: "secret-0", 23: "f5.txt"}[seq]
    assert gone in json.dumps(sent["request"])
    assert gone not in answer.text
    assert await told.tampered() == before


async def test_a_redacted_event_that_a_summary_told_of_takes_the_summary_with_it(told: Told) -> None:
    await summarize(told)
    sent = await told.context(max_tokens=2_600, policy={**POLICY, "evict": "every_assembly"}, force=True)
    assert sent["summaries"][0]["from_seq"] == 1
    assert (await told.client.delete("/v1/sessions/s/events/2")).status_code == 204
    found = (await told.again(sent["call_id"])).json()
    assert (found["reproduced"], found["redacted"]) == (False, [2])
    assert "[This was erased on request.]" in json.dumps(found["request"])


async def test_a_call_made_after_a_redaction_is_exact(told: Told) -> None:
    """What is shown as erased was so when it was sent."""
    assert (await told.client.delete("/v1/sessions/s/events/2")).status_code == 204
    sent = await told.context(max_tokens=30_000)
    found = (await told.again(sent["call_id"])).json()
    assert (found["reproduced"], found["sha256"]) == (True, sent["sha256"])
    manifest = (await told.client.get(f"/v1/sessions/s/calls/{sent['call_id']}")).json()
    assert {"from_seq": 2, "to_seq": 2, "disposition": "redacted", "summary": None} in manifest["dispositions"]
    await told.tamper(
        'UPDATE events SET body = \'{"type": "user.message"}\' WHERE session_id = :key AND seq = 2', key=KEY
    )
    assert (await told.again(sent["call_id"])).json()["type"] == "/problems/not-reproducible"


async def test_a_redaction_of_what_a_call_did_not_tell_of_changes_nothing(told: Told) -> None:
    sent = await told.context(
        max_tokens=1_200, policy={**POLICY, "dialogue_window": {"turns": 1}, "evict": "every_assembly"}
    )
    assert [row for row in sent["evictions"] if row["disposition"] == "dropped"]
    assert (await told.client.delete("/v1/sessions/s/events/2")).status_code == 204
    found = (await told.again(sent["call_id"])).json()
    assert (found["reproduced"], found["sha256"]) == (True, sent["sha256"])


@pytest.mark.parametrize(
    "manifest",
    ["(manifest::jsonb || '{\"version\": 77}')::json", "'[]'", "(manifest::jsonb || '{\"layers\": 1}')::json"],
)
async def test_a_manifest_that_cannot_be_read_is_loud(told: Told, manifest: str) -> None:
    sent = await told.context(max_tokens=3_000)
    await told.tamper(f"UPDATE model_calls SET manifest = {manifest} WHERE session_id = :key", key=KEY)
    for tail in ("", "/context", f"/diff/{sent['call_id']}"):
        answer = await told.client.get(f"/v1/sessions/s/calls/{sent['call_id']}{tail}")
        problem = answer.json()
        assert (answer.status_code, problem["type"]) == (500, "/problems/not-reproducible"), answer.text
        assert problem["call_id"] == sent["call_id"]


TAMPERING = {
    "an event": "UPDATE events SET body = replace(body::text, 'file 5', 'file 6')::json WHERE session_id = :key",
    "an event gone": "DELETE FROM events WHERE session_id = :key AND seq = 25",
    "a stub": 'UPDATE epochs SET frontier = replace(frontier::text, \'"keeps":[\', \'"keeps":["x",\')::json'
    " WHERE session_id = :key",
    "a frontier of another shape": 'UPDATE epochs SET frontier = \'{"stubs": [{"seq": 1}]}\' WHERE session_id = :key',
    "the epoch gone": "DELETE FROM epochs WHERE session_id = :key",
    "a summary": "UPDATE summaries SET text = text || '!' WHERE session_id = :key",
    "a summary gone": "DELETE FROM summaries WHERE session_id = :key",
    "the hash": "UPDATE model_calls SET sha256 = sha256(sha256) WHERE session_id = :key",
    "the format": "UPDATE model_calls SET format = 'anthropic' WHERE session_id = :key",
    "the policy gone": "UPDATE model_calls SET policy_name = 'gone' WHERE session_id = :key",
    "the head": "UPDATE model_calls SET head = head - 1 WHERE session_id = :key",
    "the version": "UPDATE model_calls SET render_version = 77 WHERE session_id = :key",
}


@pytest.mark.parametrize("statement", TAMPERING.values(), ids=TAMPERING.keys())
async def test_what_was_tampered_with_is_loud(told: Told, statement: str) -> None:
    await summarize(told)
    policy = {**POLICY, "evict": "every_assembly", "retention": {**POLICY["retention"], "identifiers": 0.2}}
    await told.post({"type": "tool.call", "call_id": "x", "tool": "read", "arguments": {"path": "x"}})
    await told.post({"type": "tool.result", "call_id": "x", "content": LONG + "src/once.py\n" + LONG})
    await told.post({"type": "tool.call", "call_id": "y", "tool": "read", "arguments": {"path": "y"}})
    await told.post({"type": "tool.result", "call_id": "y", "content": LONG})
    sent = await told.context(max_tokens=2_600, policy=policy, force=True)
    assert sent["summaries"]
    assert "In it: src/once.py" in json.dumps(sent["request"])
    before = await told.tampered()
    await told.tamper(statement, key=KEY)
    answer = await told.again(sent["call_id"])
    assert answer.status_code == 500, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["type"] == "/problems/not-reproducible"
    assert problem["call_id"] == sent["call_id"]
    assert (problem["recorded_sha256"] == sent["sha256"]) == ("sha256(" not in statement)
    assert problem["rendered_sha256"] != problem["recorded_sha256"]
    assert await told.tampered() == before + 1
