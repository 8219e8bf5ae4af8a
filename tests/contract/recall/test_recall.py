"""Recall over HTTP: it returns what was left out, within a bound, and only from the caller's own session."""

import asyncio
from typing import Any
from uuid import uuid4

import httpx
import pytest

from app.store.engine import Database
from app.store.ids import session_key, session_ref
from app.tenants import DEFAULT_TENANT, Tenants
from app.wings.recall import store as search
from app.wings.recall.search import TERMS_VERSION, entry
from app.wings.recall.service import Indexing
from tests.support.waiting import count_waiting

S = "/v1/sessions/s"
WINDOW = {"max_tokens": 2_500}
LINES = "\n".join(f"line {n} of the log of the build says nothing of note" for n in range(60))


async def post(client: httpx.AsyncClient, *events: dict[str, Any], at: str = S) -> None:
    answer = await client.post(f"{at}/events", json={"events": events})
    assert answer.status_code == 201, answer.text


async def recall(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    answer = await client.post(f"{S}/recall", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def turn(number: int, result: str) -> list[dict[str, Any]]:
    path = f"/repo/logs/build-{number}.txt"
    return [
        {"type": "user.message", "content": f"What is in build {number}?", "author": "ann"},
        {"type": "tool.call", "call_id": f"c{number}", "tool": "read", "arguments": {"path": path}},
        {"type": "tool.result", "call_id": f"c{number}", "content": result},
        {"type": "assistant.message", "content": f"Nothing of note in build {number}."},
    ]


@pytest.fixture
async def long_session(client: httpx.AsyncClient) -> httpx.AsyncClient:
    """A session of ten turns in a window of two, after its first context."""
    for number in range(1, 11):
        secret = f"\nthe port is order_id=884{number} here" if number in (2, 10) else ""
        await post(client, *turn(number, LINES + secret))
    answer = await client.get(f"{S}/context", params=WINDOW)
    assert answer.status_code == 200, answer.text
    assert "8842" not in answer.text and "88410" in answer.text
    return client


async def test_omitted_events_are_returned_and_visible_ones_are_not_repeated(long_session: httpx.AsyncClient) -> None:
    found = await recall(long_session, query="order_id=8842")
    first = found["items"][0]
    assert (first["seq"], first["visible"], first["tool"], first["path"]) == (
        7,
        False,
        "read",
        "/repo/logs/build-2.txt",
    )
    assert "order_id=8842" in first["content"]
    seen = await recall(long_session, query="order_id=88410", seqs=[39])
    assert (seen["items"][0]["seq"], seen["items"][0]["visible"]) == (39, True)
    assert "content" not in seen["items"][0]
    found = await recall(long_session, query="order_id")
    by_seq = {item["seq"]: item for item in found["items"]}
    assert by_seq[39]["visible"] and "88410" in by_seq[39]["snippet"] and "content" not in by_seq[39]
    assert not by_seq[7]["visible"]


async def test_visible_refers_to_the_named_call(long_session: httpx.AsyncClient) -> None:
    wide = (await long_session.get(f"{S}/context", params={"max_tokens": 100_000, "view": "wide"})).json()["call_id"]
    newest = await recall(long_session, seqs=[7])
    assert not newest["items"][0]["visible"]
    named = await recall(long_session, seqs=[7], call_id=wide)
    assert named["call_id"] == wide != newest["call_id"]
    assert named["items"][0]["visible"]
    await post(long_session, {"type": "user.message", "content": "And now?"})
    after = await recall(long_session, seqs=[41], call_id=wide)
    assert after["items"][0]["content"] == "And now?"
    unknown = await long_session.post(f"{S}/recall", json={"seqs": [1], "call_id": str(uuid4())})
    assert (unknown.status_code, unknown.json()["type"]) == (404, "/problems/not-found")


async def test_without_a_call_everything_is_returned(client: httpx.AsyncClient) -> None:
    await post(client, *turn(1, "Buy milk."))
    found = await recall(client, query="milk")
    assert found["items"][0] | {"score": 0, "occurred_at": ""} == {
        "seq": 3,
        "type": "tool.result",
        "turn": 1,
        "occurred_at": "",
        "tool": "read",
        "path": "/repo/logs/build-1.txt",
        "call_seq": 2,
        "visible": False,
        "tokens": found["items"][0]["tokens"],
        "score": 0,
        "content": "Buy milk.",
    }
    assert "call_id" not in found


async def test_events_are_found_by_path(long_session: httpx.AsyncClient) -> None:
    found = await recall(long_session, paths=["logs/build-2.txt", "nowhere.py"])
    assert [(item.get("seq"), item.get("missing")) for item in found["items"]] == [(7, None), (6, None), (None, True)]
    assert found["items"][2]["path"] == "nowhere.py"
    both = await recall(long_session, paths=["build-2.txt", "build-3.txt"], query="8842")
    assert both["items"][0]["seq"] == 7
    assert {item["seq"] for item in both["items"]} <= {6, 7, 10, 11}


async def test_missing_seqs_are_reported_and_repeated_ones_returned_once(long_session: httpx.AsyncClient) -> None:
    found = await recall(long_session, seqs=[3, 999, 3, 1])
    assert [(item["seq"], item.get("missing")) for item in found["items"]] == [(3, None), (1, None), (999, True)]


async def test_the_response_is_bounded_and_counts_what_it_omits(long_session: httpx.AsyncClient) -> None:
    for most in (100, 500, 3_000):
        found = await recall(long_session, query="build log line", max_tokens=most, limit=5)
        bare = [item for item in found["items"] if not item["visible"]]
        assert found["tokens"] <= most
        assert len(bare) <= 5
        assert len(found["items"]) + found["omitted"] >= 20
    few = await recall(long_session, seqs=list(range(1, 21)), max_tokens=300)
    assert few["omitted"] == 20 - len(few["items"]) > 0


async def test_without_a_limit_a_search_returns_more_short_events(client: httpx.AsyncClient) -> None:
    notes = [f"The harbour has berth {n} for boats." for n in range(60)]
    await post(client, *({"type": "user.message", "content": note} for note in [*notes, "Which berths?"]))
    short = await recall(client, query="harbour berth")
    assert [item["seq"] for item in short["items"]] == list(range(60, 10, -1))
    assert short["omitted"] == 60 - 50 + 1  # including the question, which matches too
    for limit in (1, 10, 40):
        assert len((await recall(client, query="harbour berth", limit=limit))["items"]) == limit
    few = await recall(client, query="harbour berth", max_tokens=200)
    assert 10 <= len(few["items"]) < 15
    await post(client, *(event for n in range(20) for event in turn(n, LINES)))
    long_events = (await recall(client, query="lines of the log of a build"))["items"]
    assert len(long_events) == 10


async def test_a_long_event_is_cut_around_its_match_and_can_be_continued(client: httpx.AsyncClient) -> None:
    text = "\n".join(f"{n}: {'needle in here' if n == 700 else 'hay'} {n}" for n in range(1_000))
    await post(client, *turn(1, text))
    cut = (await recall(client, query="needle", max_tokens=200))["items"][0]
    assert (cut["seq"], cut["truncated"]) == (3, True)
    assert "needle" in cut["content"] and text[cut["offset"] : cut["next_offset"]] == cut["content"]
    read, at = "", 0
    for _ in range(200):
        part = (await recall(client, seqs=[3], max_tokens=500, offset=at))["items"][0]
        read += part["content"]
        if "next_offset" not in part:
            break
        at = part["next_offset"]
    assert read == text


async def test_a_redacted_event_is_returned_as_redacted_and_no_longer_found(
    long_session: httpx.AsyncClient, database: Database
) -> None:
    assert (await recall(long_session, query="8842"))["items"][0]["seq"] == 7
    assert (await long_session.delete(f"{S}/events/7")).status_code == 204
    by_seq = (await recall(long_session, seqs=[7]))["items"][0]
    assert by_seq["redacted"] and by_seq["content"] == "[This was erased on request.]"
    assert all(item["seq"] != 7 for item in (await recall(long_session, query="8842"))["items"])
    rows = await database.fetch("SELECT seq FROM search WHERE session_id = :key", key=session_key(DEFAULT_TENANT, "s"))
    head = await database.fetchrow("SELECT * FROM search_heads")
    assert head is not None and 7 not in {row["seq"] for row in rows}
    assert head["entries"] == len(rows)


async def test_a_redaction_waits_for_the_indexing_of_its_event(client: httpx.AsyncClient, database: Database) -> None:
    await post(client, *turn(1, "the secret is out"))
    own = session_ref(DEFAULT_TENANT, "s")
    async with database.transaction() as tx:
        indexed = await search.lock(tx, own, 4)
        assert indexed == search.IndexedRange(5, 4)
        events = await search.unindexed_events(tx, own.session_id, indexed, 1, 4, 100, 100_000)
        redacting = asyncio.create_task(client.delete(f"{S}/events/3"))
        async with asyncio.timeout(20):
            while not await count_waiting(database):
                pass
        await search.add(tx, own, [e for e in map(entry, events) if e], search.IndexedRange(1, 4))
    assert (await redacting).status_code == 204
    assert await database.fetch("SELECT seq FROM search WHERE seq = 3") == []


async def test_calls_and_results_of_recall_rank_last(client: httpx.AsyncClient) -> None:
    await post(client, {"type": "user.message", "content": "the port is 8123"}, *turn(1, "Buy milk."))
    await post(
        client,
        {"type": "tool.call", "call_id": "r", "tool": "recall", "arguments": {"query": "port 8123"}},
        {"type": "tool.result", "call_id": "r", "content": "the port is 8123"},
    )
    assert [item["seq"] for item in (await recall(client, query="8123"))["items"]] == [1, 3, 4, 5, 2]


async def test_the_question_itself_never_comes_first(long_session: httpx.AsyncClient) -> None:
    asks = {"type": "user.message", "content": "Which port was order_id=8842 about, the port of build 2?"}
    looks = {"type": "tool.call", "call_id": "m", "tool": "memory", "arguments": {"query": "order_id=8842 port build"}}
    await post(long_session, asks, looks)
    found = await recall(long_session, query="order_id=8842 port of build 2", limit=50)
    seqs = [item["seq"] for item in found["items"]]
    assert (seqs[0], {*seqs[-2:]}) == (7, {41, 42})
    assert not any(item["visible"] for item in found["items"][:3])
    call = (await long_session.get(f"{S}/context", params=WINDOW)).json()["call_id"]
    again = (await recall(long_session, query="order_id=8842 port of build 2", call_id=call))["items"]
    assert again[0]["seq"] == 7
    assert all("content" not in item for item in again if item["visible"])


async def test_visible_events_rank_after_others(long_session: httpx.AsyncClient) -> None:
    for asked in ({"query": "What is in build 10?"}, {"paths": ["logs/build-10.txt", "logs/build-2.txt"]}):
        visible = [item["visible"] for item in (await recall(long_session, **asked))["items"]]
        assert visible == sorted(visible) and {*visible} == {False, True}


async def test_concurrent_recalls_index_a_session_once(client: httpx.AsyncClient, database: Database) -> None:
    await post(client, *(event for number in range(1, 101) for event in turn(number, f"value-{number}")))
    answers = await asyncio.gather(*(recall(client, query=f"value-{number}") for number in range(1, 31)))
    assert [answer["items"][0]["content"] for answer in answers] == [f"value-{number}" for number in range(1, 31)]
    head = await database.fetchrow("SELECT h.*, (SELECT count(*) FROM search) AS n FROM search_heads h")
    assert head is not None and (head["head"], head["entries"], head["n"]) == (400, 400, 400)
    await post(client, {"type": "user.message", "content": "one more thing"})
    assert (await recall(client, query="thing"))["items"][0]["seq"] == 401


async def test_an_index_of_an_earlier_version_is_rebuilt(client: httpx.AsyncClient, database: Database) -> None:
    await post(client, *turn(1, "the harbour is closed"))
    assert (await recall(client, query="harbour"))["items"]
    await database.execute("UPDATE search SET terms = '{1}', counts = '{1}'")
    await database.execute("UPDATE search_heads SET version = 1")
    assert (await recall(client, query="harbour"))["items"]
    head = await database.fetchrow("SELECT h.*, (SELECT count(*) FROM search) AS n FROM search_heads h")
    assert head is not None and (head["head"], head["entries"], head["n"]) == (4, 4, 4)
    assert head["version"] == TERMS_VERSION


async def test_an_answer_ranks_before_its_question_whatever_its_word_forms(
    client: httpx.AsyncClient,
) -> None:
    said = [
        "Ann: We walked along the pier for an hour.",
        "Bob: What did you buy at the harbour market?",
        "Ann: Two baskets, and a lamp for the kitchen.",
        "Bob: The children of my sister bought a kite there.",
        "Ann: It rained the whole evening after that.",
    ]
    await post(client, *({"type": "user.message", "content": text} for text in said))
    found = await recall(client, query="What has Ann bought at the harbour market?", limit=1)
    assert [item["seq"] for item in found["items"]] == [3]
    assert 4 in [item["seq"] for item in (await recall(client, query="child buying"))["items"]]


async def test_indexing_ends_with_the_session(client: httpx.AsyncClient, database: Database) -> None:
    await post(client, *turn(1, "x"))
    indexing = Indexing(database)
    own = session_ref(DEFAULT_TENANT, "s")
    assert await indexing.index(own._replace(tenant_id=uuid4()), 1, 4) is None
    assert await indexing.index(own, 1, 4) == 0
    assert (await client.delete(S)).status_code == 204
    assert await indexing.index(own, 1, 4) is None
    assert await database.fetch("SELECT 1 FROM search UNION ALL SELECT 1 FROM search_heads") == []


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, ""),
        ({"query": ""}, "query"),
        ({"seqs": [0]}, "seqs.0"),
        ({"seqs": [2**63]}, "seqs.0"),
        ({"seqs": list(range(1, 102))}, "seqs"),
        ({"paths": [""]}, "paths.0"),
        ({"query": "x", "limit": 0}, "limit"),
        ({"query": "x", "max_tokens": 10}, "max_tokens"),
        ({"query": "x", "offset": 5}, ""),
        ({"seqs": [1, 2], "offset": 5}, ""),
        ({"query": "x", "call_id": "call-1"}, "call_id"),
        ({"query": "x", "words": 1}, "words"),
    ],
)
async def test_invalid_requests_are_refused(client: httpx.AsyncClient, body: dict[str, Any], field: str) -> None:
    await post(client, *turn(1, "x"))
    answer = await client.post(f"{S}/recall", json=body)
    problem = answer.json()
    assert (answer.status_code, problem["type"]) == (422, "/problems/invalid-request")
    assert problem["field"] == field


@pytest.mark.parametrize("query", ["the", "' OR 1=1 --", "%", "\\", "a & b | !c", "猫", "\u0000x", "…", "x" * 2_000])
async def test_any_text_can_be_searched(client: httpx.AsyncClient, query: str) -> None:
    await post(client, *turn(1, "x"))
    assert (await recall(client, query=query, paths=[query[:100]]))["omitted"] == 0


async def test_a_session_is_searched_by_its_own_tenant_only(client: httpx.AsyncClient, database: Database) -> None:
    await post(client, *turn(1, "Buy milk."))
    assert (await client.post("/v1/sessions/none/recall", json={"query": "milk"})).status_code == 404
    tenants = Tenants(database, None)
    theirs = {"Authorization": f"Bearer {(await tenants.create_key('other', 'k', ['read'])).secret}"}
    writer = {"Authorization": f"Bearer {(await tenants.create_key('default', 'k', ['ingest'])).secret}"}
    reader = {"Authorization": f"Bearer {(await tenants.create_key('default', 'k', ['read'])).secret}"}
    for headers, status in ((theirs, 404), (writer, 403), (reader, 200)):
        answer = await client.post(f"{S}/recall", json={"query": "milk"}, headers=headers)
        assert answer.status_code == status, answer.text


async def test_the_tool_is_defined_for_each_provider(client: httpx.AsyncClient) -> None:
    every = (await client.get("/v1/tools/recall")).json()
    assert list(every) == ["openai", "openai-responses", "anthropic", "gemini"]
    for name, definition in every.items():
        assert (await client.get("/v1/tools/recall", params={"format": name})).json() == definition
    chat, responses, anthropic, gemini = every.values()
    assert gemini["functionDeclarations"][0]["parametersJsonSchema"] == responses["parameters"]
    assert chat == {"type": "function", "function": {k: v for k, v in responses.items() if k != "type"}}
    assert anthropic["input_schema"] == responses["parameters"] == chat["function"]["parameters"]
    assert set(anthropic["input_schema"]["properties"]) == {"query", "seqs", "paths", "limit", "offset"}
    assert (await client.get("/v1/tools/recall", params={"format": "blocks"})).status_code == 422
    await post(client, {"type": "tools", "content": [anthropic]}, *turn(1, "x"))
    for form in every:
        request = (await client.get(f"{S}/context", params={"format": form})).json()["request"]
        [tool] = request["tools"][0].get("functionDeclarations", request["tools"][:1])
        assert tool.get("function", tool)["name"] == "recall"


async def test_a_fork_finds_its_shared_events_and_none_of_its_parents_later_ones(
    client: httpx.AsyncClient, database: Database
) -> None:
    await post(client, *turn(1, "the port is 8123"))
    forked = await client.post(f"{S}/fork", json={"at": 3, "id": "f"})
    assert forked.status_code == 201, forked.text
    await post(client, {"type": "user.message", "content": "the port is 9000 now"})
    await post(client, {"type": "user.message", "content": "the port is 7000 here"}, at="/v1/sessions/f")
    answer = await client.post("/v1/sessions/f/recall", json={"query": "port", "paths": []})
    found = {item["seq"]: item["content"] for item in answer.json()["items"]}
    assert found[3] == "the port is 8123" and found[4] == "the port is 7000 here"
    assert not any("9000" in content for content in found.values())
    by_path = await client.post("/v1/sessions/f/recall", json={"paths": ["build-1.txt"]})
    assert [item["seq"] for item in by_path.json()["items"]] == [3, 2]
    rows = await database.fetch("SELECT seq FROM search WHERE session_id = :key", key=session_key(DEFAULT_TENANT, "f"))
    assert [row["seq"] for row in rows] == [4]
    assert (await client.delete(f"{S}/events/3")).status_code == 204
    again = await client.post("/v1/sessions/f/recall", json={"query": "8123", "seqs": [3]})
    assert [item.get("redacted") for item in again.json()["items"]] == [True]
