"""Recorded calls rendered again over HTTP: after redactions, and after tampering with their records."""

import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from app import tokenizers
from app.runtime import wiring
from app.runtime.settings import Settings
from app.store.engine import Database
from app.store.ids import session_key, session_ref
from app.tenants import DEFAULT_TENANT
from app.tokenizers import Counting

pytestmark = pytest.mark.wing("audit")

Json = dict[str, Any]
KEY = session_key(DEFAULT_TENANT, "s")
LONG = "what the file says, line by line, and then some more of it\n" * 40
POLICY = {
    "reserve_tokens": 0,
    "retention": {"keep_last": 1, "min_tokens": 50},
    "summarize": {"chunk_tokens": 300, "max_tokens": 300, "max_ratio": 1.0, "keep_ratio": 0.1},
}


@dataclass
class RecordedSession:
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
        """Change a row with all triggers disabled."""
        async with self.database.transaction() as tx:
            await tx.execute("SET LOCAL session_replication_role = replica")
            await tx.execute(statement, **values)

    async def tampered(self) -> float:
        """Return the metric of calls that could not be reproduced."""
        text = (await self.client.get("/metrics")).text
        found = re.search(r"^palimpsest_calls_not_reproducible_total ([0-9.e+]+)$", text, re.MULTILINE)
        assert found is not None
        return float(found[1])


@pytest.fixture
async def recorded(client: httpx.AsyncClient, database: Database) -> AsyncIterator[RecordedSession]:
    answer = await client.put("/v1/sessions/s", json={"policy": POLICY})
    assert answer.status_code == 201, answer.text
    recorded = RecordedSession(client, database)
    await recorded.post({"type": "system.prompt", "content": "You read files."})
    for turn in range(6):
        call = f"c{turn}"
        await recorded.post(
            {"type": "user.message", "content": f"What is in file {turn}? The password is pass-{turn}."},
            {"type": "tool.call", "call_id": call, "tool": "read", "arguments": {"path": f"f{turn}.txt"}},
            {"type": "tool.result", "call_id": call, "content": f"secret-{turn} begins it\n{LONG}"},
            {"type": "assistant.message", "content": f"It says a lot, file {turn}."},
        )
    yield recorded


async def summarize(recorded: RecordedSession) -> None:
    """Write the summaries that so small a window needs."""
    await recorded.context(max_tokens=1_500)
    settings = Settings()
    counting = Counting(tokenizers.load(settings.tiktoken_cache_dir))
    compaction = wiring.compaction(settings, recorded.database, counting)
    await compaction.run(session_ref(DEFAULT_TENANT, "s"))
    await compaction.aclose()


async def test_a_call_renders_to_the_same_bytes_later(recorded: RecordedSession) -> None:
    sent = await recorded.context(max_tokens=3_000)
    assert sent["evictions"]
    await summarize(recorded)
    await recorded.context(max_tokens=1_500)
    await recorded.context(max_tokens=2_000, policy={"reserve_tokens": 10, "authors": []}, model="gpt-4o")
    await recorded.post({"type": "system.prompt", "content": "You do something else now."})
    found = (await recorded.again(sent["call_id"])).json()
    assert (found["reproduced"], found["redacted"]) == (True, [])
    same = ("request", "sha256", "tokens", "summaries", "evictions", "cache", "head", "epoch", "policy", "call_id")
    assert {name: found[name] for name in same} == {name: sent[name] for name in same}
    assert found["recorded_sha256"] == sent["sha256"]


@pytest.mark.wing("compare")
async def test_unknown_calls_are_404(recorded: RecordedSession) -> None:
    sent = await recorded.context(max_tokens=3_000)
    for path in (f"/v1/sessions/t/calls/{sent['call_id']}", f"/v1/sessions/s/calls/{KEY}"):
        for tail in ("", "/context", f"/diff/{KEY}"):
            answer = await recorded.client.get(path + tail)
            assert (answer.status_code, answer.json()["type"]) == (404, "/problems/not-found")
    assert (await recorded.client.get("/v1/sessions/s/calls/no-id")).status_code == 422


@pytest.mark.parametrize("seq", [2, 3, 4, 23], ids=["user", "call", "stubbed result", "verbatim"])
@pytest.mark.wing("telemetry")
async def test_a_later_redaction_is_reported_with_the_call(recorded: RecordedSession, seq: int) -> None:
    sent = await recorded.context(max_tokens=3_000)
    before = await recorded.tampered()
    assert (await recorded.client.delete(f"/v1/sessions/s/events/{seq}")).status_code == 204
    answer = await recorded.again(sent["call_id"])
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert (found["reproduced"], found["redacted"]) == (False, [seq])
    assert found["recorded_sha256"] == sent["sha256"] != found["sha256"]
    gone = {2: "pass-0", 3: "f0.txt", 4: "secret-0", 23: "f5.txt"}[seq]
    assert gone in json.dumps(sent["request"])
    assert gone not in answer.text
    assert await recorded.tampered() == before


async def test_a_later_redaction_also_erases_the_summary_of_the_event(recorded: RecordedSession) -> None:
    await summarize(recorded)
    sent = await recorded.context(max_tokens=2_600, policy={**POLICY, "evict": "every_assembly"}, force=True)
    assert sent["summaries"][0]["from_seq"] == 1
    assert (await recorded.client.delete("/v1/sessions/s/events/2")).status_code == 204
    found = (await recorded.again(sent["call_id"])).json()
    assert (found["reproduced"], found["redacted"]) == (False, [2])
    assert "[This was erased on request.]" in json.dumps(found["request"])


async def test_a_call_made_after_a_redaction_is_exact(recorded: RecordedSession) -> None:
    """The event was already redacted when the call was made."""
    assert (await recorded.client.delete("/v1/sessions/s/events/2")).status_code == 204
    sent = await recorded.context(max_tokens=30_000)
    found = (await recorded.again(sent["call_id"])).json()
    assert (found["reproduced"], found["sha256"]) == (True, sent["sha256"])
    manifest = (await recorded.client.get(f"/v1/sessions/s/calls/{sent['call_id']}")).json()
    assert {"from_seq": 2, "to_seq": 2, "disposition": "redacted", "summary": None} in manifest["dispositions"]
    await recorded.tamper(
        'UPDATE events SET body = \'{"type": "user.message"}\' WHERE session_id = :key AND seq = 2', key=KEY
    )
    assert (await recorded.again(sent["call_id"])).json()["type"] == "/problems/not-reproducible"


async def test_a_redaction_of_an_event_not_shown_changes_nothing(recorded: RecordedSession) -> None:
    sent = await recorded.context(
        max_tokens=1_200, policy={**POLICY, "dialogue_window": {"turns": 1}, "evict": "every_assembly"}
    )
    assert [row for row in sent["evictions"] if row["disposition"] == "dropped"]
    assert (await recorded.client.delete("/v1/sessions/s/events/2")).status_code == 204
    found = (await recorded.again(sent["call_id"])).json()
    assert (found["reproduced"], found["sha256"]) == (True, sent["sha256"])


@pytest.mark.wing("compare")
@pytest.mark.parametrize(
    "manifest",
    ["(manifest::jsonb || '{\"version\": 77}')::json", "'[]'", "(manifest::jsonb || '{\"layers\": 1}')::json"],
)
async def test_an_unreadable_manifest_is_an_error(recorded: RecordedSession, manifest: str) -> None:
    sent = await recorded.context(max_tokens=3_000)
    await recorded.tamper(f"UPDATE model_calls SET manifest = {manifest} WHERE session_id = :key", key=KEY)
    for tail in ("", "/context", f"/diff/{sent['call_id']}"):
        answer = await recorded.client.get(f"/v1/sessions/s/calls/{sent['call_id']}{tail}")
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
@pytest.mark.wing("telemetry")
async def test_tampering_is_an_error(recorded: RecordedSession, statement: str) -> None:
    await summarize(recorded)
    policy = {**POLICY, "evict": "every_assembly", "retention": {**POLICY["retention"], "identifiers": 0.2}}
    await recorded.post({"type": "tool.call", "call_id": "x", "tool": "read", "arguments": {"path": "x"}})
    await recorded.post({"type": "tool.result", "call_id": "x", "content": LONG + "src/once.py\n" + LONG})
    await recorded.post({"type": "tool.call", "call_id": "y", "tool": "read", "arguments": {"path": "y"}})
    await recorded.post({"type": "tool.result", "call_id": "y", "content": LONG})
    sent = await recorded.context(max_tokens=2_600, policy=policy, force=True)
    assert sent["summaries"]
    assert "In it: src/once.py" in json.dumps(sent["request"])
    before = await recorded.tampered()
    await recorded.tamper(statement, key=KEY)
    answer = await recorded.again(sent["call_id"])
    assert answer.status_code == 500, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["type"] == "/problems/not-reproducible"
    assert problem["call_id"] == sent["call_id"]
    assert (problem["recorded_sha256"] == sent["sha256"]) == ("sha256(" not in statement)
    assert problem["rendered_sha256"] != problem["recorded_sha256"]
    assert await recorded.tampered() == before + 1
