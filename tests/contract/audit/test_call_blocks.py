"""The blocks of recorded calls over HTTP: each text of the request, and how, why and at which size it is shown."""

from collections import Counter
from typing import Any

import httpx
import pytest

from app.core.log.events import canonical_json
from tests.contract.audit.test_rerender import KEY, LONG, POLICY, RecordedSession, recorded, summarize

pytestmark = pytest.mark.wing("audit")

__all__ = ["recorded"]
Json = dict[str, Any]
GREEDY = {**POLICY, "evict": "every_assembly"}


async def blocks_of(client: httpx.AsyncClient, call_id: str, sid: str = "s", **asks: Any) -> list[Json]:
    """Return all blocks of a call, page by page."""
    found: list[Json] = []
    query: Json = {"text": 100_000, **asks}
    while True:
        answer = await client.get(f"/v1/sessions/{sid}/calls/{call_id}/blocks", params=query)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        found += page["items"]
        if page["next_cursor"] is None:
            return found
        query["cursor"] = page["next_cursor"]


async def ask(client: httpx.AsyncClient, method: str, path: str, body: Json) -> None:
    answer = await client.request(method, f"/v1/sessions/s{path}", json=body)
    assert answer.status_code < 300, answer.text


def sent_blocks(request: Json) -> list[tuple[int, str, str]]:
    """Return the seq, the kind and the text of each block of a request in the format `blocks`."""
    written = []
    for block in request["blocks"]:
        whole = block.get("arguments") if block["kind"] == "call" else block["content"]
        written.append((block["seq"], block["kind"], whole if isinstance(whole, str) else canonical_json(whole)))
    return written


def marks(blocks: list[Json], *names: str) -> list[tuple[Any, ...]]:
    """Return the fields `names` of each block that is not shown verbatim."""
    return [tuple(block[name] for name in ("mark", *names)) for block in blocks if block["mark"] != "verbatim"]


def check_sums(blocks: list[Json], tokens: Json) -> None:
    """Check that the blocks of each source add up to its figure, but for a request's own tokens."""
    sums = Counter[str]()
    for block in blocks:
        sums[block["source"]] += block["tokens"]
    own = tokens["by_source"]
    assert {name: sums[name] for name in own if name != "ephemeral"} == {
        name: count for name, count in own.items() if name != "ephemeral"
    }
    assert 0 < own["ephemeral"] - sums["ephemeral"] < 20


async def test_the_blocks_are_those_of_the_request(recorded: RecordedSession) -> None:
    tools = [{"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}]
    await recorded.post({"type": "tools", "content": tools})
    sent = await recorded.context(max_tokens=3_000, format="blocks")
    blocks = await blocks_of(recorded.client, sent["call_id"])
    assert [(block["seq"], block["kind"], block["text"]) for block in blocks] == sent_blocks(sent["request"])
    assert [block["index"] for block in blocks] == list(range(len(blocks)))
    assert [block["source"] for block in blocks[:3]] == ["tools", "system", "history"]
    assert {block["source"] for block in blocks if block["seq"] >= 22 and block["kind"] != "tools"} == {"current_turn"}
    assert all(block["chars"] == len(block["text"]) and not block["cut"] for block in blocks)
    check_sums(blocks, sent["tokens"])
    first = sent["evictions"][0]
    assert marks(blocks, "seq", "kind", "tool", "call_id", "reducer", "reason")[0] == (
        *("stub", 4, "result", "read", "c0"),
        *(first["reducer"], first["reason"]),
    )


async def test_pages_and_texts_have_limits(recorded: RecordedSession) -> None:
    call_id = (await recorded.context(max_tokens=30_000))["call_id"]
    whole = await blocks_of(recorded.client, call_id)
    assert not any(block["cut"] for block in whole)
    assert await blocks_of(recorded.client, call_id, limit=7) == whole
    short = await blocks_of(recorded.client, call_id, text=10)
    assert [block["text"] for block in short] == [block["text"][:10] for block in whole]
    assert [block["cut"] for block in short] == [block["chars"] > 10 for block in whole]
    assert [{**block, "text": "", "cut": False} for block in short] == [{**block, "text": ""} for block in whole]
    path = f"/v1/sessions/s/calls/{call_id}/blocks"
    assert (await recorded.client.get(f"{path}/4")).json() == whole[4]
    for tail, status in ((f"/{len(whole)}", 404), ("/-1", 422), ("?text=100001", 422), ("?cursor=x", 422)):
        assert (await recorded.client.get(path + tail)).status_code == status
    for unknown in (f"/v1/sessions/t/calls/{call_id}", f"/v1/sessions/s/calls/{KEY}"):
        for tail in ("/blocks", "/blocks/0"):
            assert (await recorded.client.get(unknown + tail)).status_code == 404


async def test_summaries_name_their_events(recorded: RecordedSession) -> None:
    await summarize(recorded)
    sent = await recorded.context(max_tokens=2_600, policy=GREEDY, force=True)
    blocks = await blocks_of(recorded.client, sent["call_id"])
    [summary] = [block for block in blocks if block["mark"] == "summary"]
    refs = sent["summaries"]
    assert (summary["from_seq"], summary["seq"]) == (refs[0]["from_seq"], refs[-1]["to_seq"])
    assert (summary["summaries"], summary["source"], summary["reducer"]) == (
        [one["id"] for one in refs],
        "summaries",
        "fold",
    )
    assert summary["tokens"] == sent["tokens"]["by_source"]["summaries"]
    assert summary["text"] in [message["content"] for message in sent["request"]["messages"]]
    check_sums(blocks, sent["tokens"])


async def test_texts_of_the_server_and_of_the_call_are_marked(recorded: RecordedSession) -> None:
    await ask(recorded.client, "PUT", "/layers/sources", {"content": "f1.txt"})
    await ask(recorded.client, "PUT", "/layers/announce", {"content": "Two files are new."})
    await ask(recorded.client, "PATCH", "/visibility", {"hide": [{"seq": 4, "replacement": "[of no use]"}]})
    await recorded.post({"type": "user.message", "content": "Go on."})
    await recorded.post({"type": "tool.call", "call_id": "x", "tool": "write", "arguments": {"text": "word " * 2_000}})
    await recorded.post({"type": "tool.result", "call_id": "x", "content": "written"})
    await recorded.post({"type": "tool.call", "call_id": "y", "tool": "read", "arguments": {"path": "y"}})
    policy = {**GREEDY, "retention": {"keep_last": 0, "min_tokens": 50, "arguments": True}}
    policy |= {"dialogue_window": {"turns": 3}, "injection_reserve_tokens": 100}
    injected = [{"name": "hook", "content": "remember"}]
    sent = await recorded.context(max_tokens=4_000, format="blocks", policy=policy, injections=injected)
    blocks = await blocks_of(recorded.client, sent["call_id"])
    assert [(block["seq"], block["kind"], block["text"]) for block in blocks] == sent_blocks(sent["request"])
    found = marks(blocks, "name", "source")
    assert found[-4:] == [
        ("pending", None, "current_turn"),
        ("layer", "sources", "ephemeral"),
        ("layer", "announce", "ephemeral"),
        ("injected", "hook", "ephemeral"),
    ]
    assert {mark for mark, *_ in found} >= {"note", "shortened"}
    note = next(block for block in blocks if block["mark"] == "note")
    assert (note["from_seq"], note["source"]) == (sent["evictions"][0]["from_seq"], "history")
    check_sums(blocks, sent["tokens"])


async def test_a_replacement_and_the_notice_of_pruning_are_marked(recorded: RecordedSession) -> None:
    await ask(recorded.client, "PATCH", "/visibility", {"hide": [{"seq": 4, "replacement": "[of no use]"}]})
    pruning = {"ttl_pruning": {"ttl_seconds": 60, "keep_recent_turns": 1, "keep_recent_intact_turns": 0}}
    for now in ("2026-01-01T00:00:00Z", "2026-01-01T00:10:00Z"):
        sent = await recorded.context(max_tokens=30_000, policy={**POLICY, **pruning}, now=now)
    blocks = await blocks_of(recorded.client, sent["call_id"])
    [hidden] = [block for block in blocks if block["seq"] == 4]
    assert (hidden["mark"], hidden["text"], hidden["reducer"]) == ("replaced", "[of no use]", "visibility")
    [notice] = [block for block in blocks if block["mark"] == "notice"]
    manifest = (await recorded.client.get(f"/v1/sessions/s/calls/{sent['call_id']}")).json()
    assert (notice["text"], notice["index"]) == (manifest["notice"], len(blocks) - 1)


async def test_content_that_the_format_cannot_express_is_marked(recorded: RecordedSession) -> None:
    audio = {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}
    body = {"format": "openai", "messages": [{"role": "user", "content": [audio]}]}
    await ask(recorded.client, "POST", "/messages", body)
    for form, expected in (("anthropic", [("converted", 26, "format", "no_audio_in_anthropic")]), ("openai", [])):
        sent = await recorded.context(max_tokens=30_000, format=form)
        blocks = await blocks_of(recorded.client, sent["call_id"])
        assert marks(blocks, "seq", "reducer", "reason") == expected
        lost = [(row["from_seq"], row["reason"]) for row in sent["evictions"] if row["reducer"] == "format"]
        assert lost == [(seq, reason) for _, seq, _, reason in expected]


async def test_cache_breakpoints_follow_their_blocks(recorded: RecordedSession) -> None:
    for _ in range(2):
        sent = await recorded.context(max_tokens=30_000, format="anthropic", model="claude-sonnet-4-5")
        await recorded.post({"type": "user.message", "content": "And then?"})
    blocks = await blocks_of(recorded.client, sent["call_id"])
    points = [(block["seq"], block["breakpoint"]) for block in blocks if block["breakpoint"]]
    assert points == [(point["seq"], point["kind"]) for point in sent["cache"]["breakpoints"]]
    assert points[0] == (1, "system")


@pytest.mark.parametrize("before", [True, False], ids=["before the call", "after it"])
async def test_erased_events_are_marked(recorded: RecordedSession, before: bool) -> None:
    if before:
        assert (await recorded.client.delete("/v1/sessions/s/events/2")).status_code == 204
    sent = await recorded.context(max_tokens=30_000)
    whole = await blocks_of(recorded.client, sent["call_id"])
    if not before:
        assert (await recorded.client.delete("/v1/sessions/s/events/2")).status_code == 204
    blocks = await blocks_of(recorded.client, sent["call_id"])
    assert marks(blocks, "seq", "text", "reason") == [
        ("erased", 2, "[This was erased on request.]", "erased on request")
    ]
    assert (blocks == whole) is before
    others = [(block["seq"], block["text"]) for block in whole if block["seq"] != 2]
    assert [(block["seq"], block["text"]) for block in blocks if block["seq"] != 2] == others


async def test_calls_of_forks_show_the_events_of_their_parents(recorded: RecordedSession) -> None:
    await ask(recorded.client, "POST", "/fork", {"id": "f", "at": 9})
    said = {"events": [{"type": "user.message", "content": "Only here."}]}
    assert (await recorded.client.post("/v1/sessions/f/events", json=said)).status_code == 201
    answer = await recorded.client.post("/v1/sessions/f/context", json={"format": "blocks", "max_tokens": 30_000})
    sent = answer.json()
    blocks = await blocks_of(recorded.client, sent["call_id"], "f")
    assert [(block["seq"], block["kind"], block["text"]) for block in blocks] == sent_blocks(sent["request"])
    assert blocks[-1]["text"] == "Only here."
    assert LONG in blocks[3]["text"]
    assert (await recorded.client.get(f"/v1/sessions/s/calls/{sent['call_id']}/blocks")).status_code == 404


async def test_blocks_of_a_record_that_was_changed_are_refused(recorded: RecordedSession) -> None:
    call_id = (await recorded.context(max_tokens=3_000))["call_id"]
    await recorded.tamper(
        "UPDATE events SET body = replace(body::text, 'file 5', 'file 6')::json WHERE session_id = :key", key=KEY
    )
    for tail in ("", "/0"):
        answer = await recorded.client.get(f"/v1/sessions/s/calls/{call_id}/blocks{tail}")
        assert (answer.status_code, answer.json()["type"]) == (500, "/problems/not-reproducible")


async def record_of(recorded: RecordedSession, call_id: str) -> Json:
    """Return the record of a call without the dispositions of all events."""
    answer = await recorded.client.get(f"/v1/sessions/s/calls/{call_id}", params={"dispositions": "false"})
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


async def test_the_reducers_that_declined_are_named_with_their_reasons(recorded: RecordedSession) -> None:
    first = await record_of(recorded, (await recorded.context(max_tokens=30_000))["call_id"])
    assert (first["moment"], first["dispositions"]) == ("warm", [])
    reasons = {one["reducer"]: one["reason"] for one in first["declined"]}
    assert list(reasons) == [
        *("expiry", "ttl_pruning", "once", "economics", "retention", "caps", "dialogue_window", "fold", "last_resort"),
    ]
    assert (reasons["economics"], reasons["fold"]) == ("not_asked", "below_trigger")
    query = {"dispositions": "false", "declined": "false"}
    without = await recorded.client.get(f"/v1/sessions/s/calls/{first['call_id']}", params=query)
    assert without.json() == first | {"declined": None}
    sent = await recorded.context(max_tokens=3_000, force=True)
    pressed = await record_of(recorded, sent["call_id"])
    evicted = {row["reducer"] for row in sent["evictions"]}
    assert pressed["moment"] == "pressed"
    assert evicted.isdisjoint(one["reducer"] for one in pressed["declined"])
    assert {one["reducer"] for one in pressed["declined"]} | evicted == set(reasons)


async def test_blocks_that_stay_whole_name_what_protects_them(recorded: RecordedSession) -> None:
    await ask(recorded.client, "PATCH", "/visibility", {"pin": [4]})
    await recorded.post({"type": "tool.call", "call_id": "open", "tool": "read", "arguments": {"path": "open"}})
    sent = await recorded.context(max_tokens=30_000)
    await ask(recorded.client, "PATCH", "/visibility", {"unpin": [4]})
    found = {block["seq"]: block["protected_by"] for block in await blocks_of(recorded.client, sent["call_id"])}
    assert [found[seq] for seq in (1, 2, 3, 4, 22)] == [
        "prefix",
        "message",
        "below_minimum",
        "pinned",
        "current_request",
    ]
    assert found[24] == "newest"


async def test_what_declined_is_unknown_for_early_records_and_erased_events(recorded: RecordedSession) -> None:
    call_id = (await recorded.context(max_tokens=30_000))["call_id"]
    assert (await record_of(recorded, call_id))["declined"]
    assert (await recorded.client.delete("/v1/sessions/s/events/2")).status_code == 204
    assert (await record_of(recorded, call_id))["declined"] is None
    call_id = (await recorded.context(max_tokens=30_000))["call_id"]
    await recorded.tamper(
        "UPDATE model_calls SET manifest = (manifest::jsonb - 'moment')::json WHERE session_id = :key", key=KEY
    )
    early = await record_of(recorded, call_id)
    assert (early["moment"], early["declined"]) == (None, None)
    assert {block["protected_by"] for block in await blocks_of(recorded.client, call_id)} == {None}
