"""The two hot reads read a bounded part of a log by index, whatever its length."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from app.store import event_log, sessions, spans, view_reads, views
from app.store.engine import Database, acting_for
from app.store.ids import session_key, session_ref
from app.store.session_filter import SCAN_MAX, SessionFilter
from app.tenants import DEFAULT_TENANT
from tests.conftest import filled_database
from tests.support.databases import migrated

EVENTS = 30_000
BATCH = 1_000


async def fill(client: httpx.AsyncClient, database: Database) -> None:
    """Create a session of 30,000 events with an epoch near its end."""
    turn = [
        {"type": "user.message", "content": "What does the next line of the log say about it?"},
        {"type": "assistant.message", "content": "It says what every line before it has said, in as many words."},
    ]
    for _ in range(EVENTS // BATCH):
        answer = await client.post("/v1/sessions/long/events", json={"events": turn * (BATCH // 2)})
        assert answer.status_code == 201
    answer = await client.get("/v1/sessions/long/context", params={"max_tokens": 8_000})
    assert answer.status_code == 200
    await client.post("/v1/sessions/long/events", json={"events": turn * 5})
    await database.execute("ANALYZE events")


@pytest.fixture(scope="module")
async def long_log(postgres: str, template: str) -> AsyncIterator[str]:
    """Return the name of a database with that session."""
    async with filled_database(postgres, template, fill) as name:
        yield name


@pytest.fixture
async def database_url(postgres: str, long_log: str) -> AsyncIterator[str]:
    """Return a copy of the database for each test."""
    async with migrated(postgres, long_log) as url:
        yield url


@pytest.fixture
def long_session() -> str:
    """Return the session's name."""
    return "long"


async def explain(database: Database, sql: str, *args: object, **values: object) -> dict[str, Any]:
    with acting_for(DEFAULT_TENANT):
        row = await database.fetchrow("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + sql, *args, **values)
    assert row is not None
    plan: dict[str, Any] = json.loads(row[0])[0]["Plan"]
    return plan


def nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(node for child in plan.get("Plans", ()) for node in nodes(child))]


def check_bounded(plan: dict[str, Any], rows_max: int) -> None:
    """Assert that no node scans all events, and no index scan reads more than the tail."""
    on_events = [node for node in nodes(plan) if node.get("Relation Name") == "events"]
    assert on_events
    assert {node["Node Type"] for node in on_events} <= {"Index Scan", "Index Only Scan", "Bitmap Heap Scan"}
    for node in on_events:
        seen = (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
        assert seen <= rows_max, node
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 4_000


async def test_a_context_reads_only_its_tail(application: Database, long_session: str) -> None:
    session_id = session_key(DEFAULT_TENANT, long_session)
    bound = 16_000
    about = {"session_id": session_id, "tenant_id": DEFAULT_TENANT, "model": None}
    rest = {"at": None, "fresh": False, "bound_tokens": bound, "epoch": None, "anchors": None, "pinned": None}
    first = await explain(application, view_reads.LOAD, view="new", **about, **rest)
    later = await explain(application, view_reads.LOAD, view="main", **about, **rest)
    check_bounded(first, rows_max=1_200)
    check_bounded(later, rows_max=1_200)
    on_decisions = [node for node in nodes(later) if node.get("Relation Name") == "visibility"]
    assert on_decisions
    assert {node["Actual Loops"] for node in on_decisions} == {0}  # never executed, because there are no decisions

    with acting_for(DEFAULT_TENANT):
        loaded = await views.load(
            application, session_ref(DEFAULT_TENANT, long_session), "main", at=None, fresh=False, bound_tokens=bound
        )
    assert loaded is not None
    assert loaded.head == EVENTS + 10
    assert len(loaded.events) < 1_200
    news = await explain(
        application,
        view_reads.CHANGES,
        view="main",
        head=EVENTS,
        epoch=loaded.epoch,
        created_at=loaded.created_at,
        most=2_000,
        decisions=loaded.decisions,
        **about,
    )
    check_bounded(news, rows_max=10)

    sql = f"{event_log.READ} ORDER BY seq".format(columns="seq, body")
    read = await explain(
        application, sql, session_id=session_id, first=EVENTS - 500, last=EVENTS, seqs=[1, EVENTS // 2]
    )
    check_bounded(read, rows_max=510)
    beyond = await explain(application, event_log._BEYOND, session_id=session_id, tokens=loaded.log_tokens - bound)
    check_bounded(beyond, rows_max=5)  # the event sought, and those without tokens next to it


async def test_a_page_of_turns_reads_only_their_marks(
    client: httpx.AsyncClient, application: Database, long_session: str
) -> None:
    session_id = session_key(DEFAULT_TENANT, long_session)
    plan = await explain(
        application, event_log._MARKS, session_id=session_id, first=10_000, last=10_100, from_seq=1, to_seq=EVENTS + 10
    )
    check_bounded(plan, rows_max=110)
    answer = await client.get(f"/v1/sessions/{long_session}/turns", params={"limit": 100})
    assert len(answer.json()["items"]) == 100


async def test_the_sessions_of_a_prefix_are_found_by_their_names(application: Database, database: Database) -> None:
    """Only the twenty sessions of one user are read among 40,000, also under row-level security."""
    await database.execute(
        "INSERT INTO sessions (session_id, tenant_id, external_id, estimator) "
        "SELECT gen_random_uuid(), :tenant_id, 'user-' || n % 2000 || ':' || n, 'heuristic' "
        "FROM generate_series(1, 40000) n",
        tenant_id=DEFAULT_TENANT,
    )
    await database.execute("ANALYZE sessions")
    sql, values = sessions.listing(DEFAULT_TENANT, 50, None, SessionFilter(prefix="user-42:"), None)
    plan = await explain(application, sql, **values)
    assert plan["Actual Rows"] == 20
    for node in nodes(plan):
        if node.get("Relation Name") == "sessions":
            assert node["Actual Rows"] + node.get("Rows Removed by Filter", 0) <= 20, node
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 200
    with acting_for(DEFAULT_TENANT):
        assert (
            len((await sessions.page(application, DEFAULT_TENANT, 50, None, SessionFilter(prefix="user-42:")))[0]) == 20
        )


async def test_a_search_of_sessions_reads_a_bounded_number(application: Database, database: Database) -> None:
    """A page reads SCAN_MAX of 40,000 sessions with metadata that no index covers, wherever it begins."""
    await database.execute(
        "INSERT INTO sessions (session_id, tenant_id, external_id, estimator, metadata, created_at) "
        "SELECT gen_random_uuid(), :tenant_id, 's' || n, 'heuristic', json_build_object('user', n % 7000), "
        "now() - n * interval '1 second' FROM generate_series(1, 40000) n",
        tenant_id=DEFAULT_TENANT,
    )
    await database.execute("ANALYZE sessions")
    asked, after = SessionFilter(metadata={"user": 6999}), None
    found: list[str] = []
    for _ in range(40):
        with acting_for(DEFAULT_TENANT):
            rows, ended = await sessions.page(application, DEFAULT_TENANT, 50, after, asked)
        for sql, values in (
            sessions.scan_end(DEFAULT_TENANT, after, asked),
            sessions.listing(DEFAULT_TENANT, 50, after, asked, ended),
        ):
            for node in nodes(await explain(application, sql, **values)):
                if node.get("Relation Name") == "sessions":
                    assert node["Actual Rows"] + node.get("Rows Removed by Filter", 0) <= SCAN_MAX + 1, node
        found += [row.external_id for row in rows]
        if ended is None:
            break
        after = ended
    assert found == ["s6999", "s13999", "s20999", "s27999", "s34999"]


async def test_a_search_of_events_reads_a_bounded_number(application: Database, long_session: str) -> None:
    plan = await explain(
        application,
        event_log._OF_KIND,
        session_id=session_key(DEFAULT_TENANT, long_session),
        from_seq=1,
        to_seq=event_log.SCAN_MAX,
        type="tool.call",
        author=None,
        limit=100,
    )
    for node in nodes(plan):
        assert node.get("Actual Rows", 0) + node.get("Rows Removed by Filter", 0) <= event_log.SCAN_MAX, node
    with acting_for(DEFAULT_TENANT):
        log = event_log.SessionLog(session_key(DEFAULT_TENANT, long_session))
        assert await event_log.by_type_or_author(application, log, 0, 100, "tool.call", None) == []


async def test_a_turns_requests_are_read_from_its_two_ends(
    client: httpx.AsyncClient, application: Database, long_session: str
) -> None:
    """This holds for any number of user messages in the turn, and any length."""
    added = [{"type": "user.message", "content": "and one more", "turn_id": "t"}]
    said = [{"type": "assistant.message", "content": "and so on"}]
    heads = []
    for _ in range(4):
        answer = await client.post(f"/v1/sessions/{long_session}/events", json={"events": (added + said) * 500})
        heads.append(answer.json()["head"])
    session_id, turn = session_key(DEFAULT_TENANT, long_session), answer.json()["events"][-1]["turn"]
    values = {"turn": turn, "from_seq": 1, "to_seq": heads[-1], "limit": spans.REQUESTS_MAX}
    check_bounded(await explain(application, spans._USER_MESSAGES, session_id=session_id, **values), rows_max=5)
    with acting_for(DEFAULT_TENANT):
        found = await spans.requests(application, event_log.SessionLog(session_id), heads[1] + 1, heads[2], turn)
    first = heads[0] - 999
    assert [event.seq for event in found] == [
        *(first, first + 2, heads[1] - 3, heads[1] - 1),  # before the span
        *(heads[2] - 3, heads[2] - 1),  # within the span
    ]
