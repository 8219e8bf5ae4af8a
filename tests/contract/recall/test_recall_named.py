"""The recall tool is named only to an agent that has it, in every stub, note and header."""

import json
import re
from typing import Any

import httpx
import pytest

from tests.contract.contexts.test_context import append, turn_of_rounds

NAMES_IT = re.compile(r"recall", re.IGNORECASE)
TOOL = {"name": "mcp__palimpsest__recall", "description": "Get it back.", "parameters": {"type": "object"}}
OTHER = {"name": "read", "description": "Read a file.", "parameters": {"type": "object"}}
PRUNED = {"ttl_pruning": {"ttl_seconds": 60, "keep_recent_turns": 1, "keep_recent_intact_turns": 0}}
POLICIES: dict[str, dict[str, Any]] = {
    "stubs": {"evict": "every_assembly", "retention": {"keep_last": 1, "min_tokens": 0}},
    "dropped": {"evict": "on_pressure", "retention": {"keep_last": None}, "summarize": {"enabled": False}},
    "pruned": PRUNED,
}


async def call_context(client: httpx.AsyncClient, **asks: Any) -> dict[str, Any]:
    answer = await client.post("/v1/sessions/s/context", json={"max_tokens": 6_000, **asks})
    assert answer.status_code == 200, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def append_long_log(client: httpx.AsyncClient, tools: list[dict[str, Any]] | None = None) -> None:
    if tools:
        await append(client, [{"type": "tools", "content": json.dumps(tools)}])
    for number in range(30):
        await append(client, turn_of_rounds(1, first=number))


def names_recall(made: dict[str, Any]) -> bool:
    return NAMES_IT.search(json.dumps(made["request"].get("messages"))) is not None


@pytest.mark.wing("audit")
@pytest.mark.parametrize("kind", POLICIES)
async def test_recall_is_named_only_if_it_was_given(client: httpx.AsyncClient, kind: str) -> None:
    await append_long_log(client)
    for name, asks, given in (
        ("without", {}, False),
        ("by-call", {"recall": True}, True),
        ("by-policy", {"policy": {**POLICIES[kind], "recall": True}}, True),
    ):
        asked = {"view": name, "policy": POLICIES[kind], **asks, "max_tokens": 100_000 if kind == "pruned" else 6_000}
        await call_context(client, **asked, now="2026-01-01T00:00:00Z")
        made = await call_context(client, **asked, now="2026-01-01T00:10:00Z")
        assert made["evictions"]
        assert names_recall(made) is given
        assert sum(made["tokens"]["by_source"].values()) == made["tokens"]["estimate"] <= made["tokens"]["target"]
        again = await client.get(f"/v1/sessions/s/calls/{made['call_id']}/context")
        assert (again.status_code, again.json()["sha256"]) == (200, made["sha256"])
        same = await call_context(client, **asked, now="2026-01-01T00:10:01Z")
        assert (same["epoch"], same["cache"]["prefix_sha256"]) == (made["epoch"], made["cache"]["prefix_sha256"])


@pytest.mark.parametrize(("tools", "given"), [([TOOL, OTHER], True), ([OTHER], False)])
async def test_the_logs_tools_tell_whether_recall_was_given(
    client: httpx.AsyncClient, tools: list[dict[str, Any]], given: bool
) -> None:
    await client.put("/v1/sessions/s", json={"policy": POLICIES["dropped"]})
    await append_long_log(client, tools)
    made = await call_context(client)
    assert made["evictions"]
    assert names_recall(made) is given


@pytest.mark.parametrize("kind", ["stubs", "dropped"])
async def test_without_recall_omissions_are_still_described(client: httpx.AsyncClient, kind: str) -> None:
    await client.put("/v1/sessions/s", json={"policy": POLICIES[kind]})
    await append_long_log(client)
    text = json.dumps((await call_context(client))["request"])
    assert ("left out of this context, about" in text) or ("Left out of this context to fit" in text)


async def test_a_retry_names_recall_if_its_call_did(client: httpx.AsyncClient) -> None:
    await append_long_log(client)
    for view, asks, given in (("with", {"recall": True}, True), ("without", {}, False)):
        made = await call_context(client, view=view, max_tokens=100_000, policy=POLICIES["stubs"], **asks)
        error = {"error": {"message": "prompt is too long: 120000 tokens > 6000 maximum"}}
        report = await client.post(f"/v1/sessions/s/calls/{made['call_id']}/outcome", json=error)
        assert report.json()["action"] == "retry", report.text
        again = await client.post("/v1/sessions/s/context", json=report.json()["next"]["body"] | {"wait_ms": 0})
        assert again.json()["evictions"]
        assert names_recall(again.json()) is given
