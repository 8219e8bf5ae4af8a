"""A server whose database is distributed over nodes: agents run on it, tenants are isolated, no job is lost."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import asyncpg
import httpx
import pytest

from app.runtime.settings import Settings
from app.runtime.wing import find_placement
from app.store import compactions, migrate, sessions
from app.store.dsn import normalize
from app.store.engine import Connection, Database, acting_for
from app.store.ids import SessionRef, session_key
from app.tenants import DEFAULT_TENANT, SCOPES, Tenants
from app.wings.shards import distribute
from tests.citus import nodes
from tests.conftest import serving

pytestmark = [pytest.mark.citus, pytest.mark.wing("shards")]

Json = dict[str, Any]
TURNS = 6
LONG = "what the file says, line by line, and then some more of it\n" * 20
POLICY = {"window_tokens": 1200, "reserve_tokens": 0, "retention": {"keep_last": 1, "min_tokens": 50}}
OTHERS: dict[str, str] = {}
"""Headers of a request for the other tenant."""


@pytest.fixture(scope="module")
async def live_url(cluster: nodes.Cluster) -> AsyncIterator[str]:
    """Return a distributed database, made by an operator's commands, which the tests here share."""
    url = await cluster.make("live")
    await migrate.upgrade(normalize(url))
    await distribute.distribute(url, shards=4)
    yield url
    await cluster.drop("live")


@pytest.fixture(scope="module")
async def http(live_url: str) -> AsyncIterator[httpx.AsyncClient]:
    """Return a client of a server on it, for one of two tenants."""
    owner = Database(live_url, pool_size=2, role=None, find_placement=find_placement)
    ours, theirs = [(await Tenants(owner, None).create_key(name, "k", SCOPES)).secret for name in ("acme", "other")]
    await owner.close()
    headers = {"Authorization": f"Bearer {ours}"}
    async with (
        serving(Settings(), live_url) as base,
        httpx.AsyncClient(base_url=base, timeout=90, headers=headers) as client,
    ):
        OTHERS["Authorization"] = f"Bearer {theirs}"
        yield client


async def ask(http: httpx.AsyncClient, method: str, path: str, body: Json | None = None, status: int = 200) -> Json:
    answer = await http.request(method, f"/v1/sessions/{path}", json=body)
    assert answer.status_code == status, (path, answer.status_code, answer.text)
    found: Json = answer.json()
    return found


def turn(agent: str, number: int) -> list[Json]:
    call = f"{agent}.{number}"
    return [
        {"type": "user.message", "content": f"What is in file {number}?", "id": f"{call}.asked"},
        {"type": "tool.call", "call_id": call, "tool": "read", "arguments": {"path": f"f{number}.txt"}},
        {"type": "tool.result", "call_id": call, "content": LONG},
        {"type": "assistant.message", "content": f"It says a lot, file {number}."},
    ]


async def live(http: httpx.AsyncClient, agent: str) -> list[Json]:
    """Run an agent: appends with a key and without, contexts, and their outcomes."""
    await ask(http, "PUT", agent, {"policy": POLICY}, 201)
    made: list[Json] = []
    for number in range(TURNS):
        first, *rest = turn(agent, number)
        await ask(http, "POST", f"{agent}/events", {"events": [first]}, 201)
        key = {"Idempotency-Key": f"{agent}-{number}"}
        for status in (201, 200):
            answer = await http.post(f"/v1/sessions/{agent}/events", json={"events": rest}, headers=key)
            assert (answer.status_code, answer.json()["head"]) == (status, (number + 1) * 4), answer.text
        context = await ask(http, "GET", f"{agent}/context?format=openai")
        usage = {"usage": {"input_tokens": context["tokens"]["estimate"], "output_tokens": 9}}
        await ask(http, "POST", f"{agent}/calls/{context['call_id']}/outcome", usage)
        made.append(context)
    return made


async def test_agents_live_on_it_side_by_side(http: httpx.AsyncClient) -> None:
    names = [f"agent-{number}" for number in range(4)]
    lives = dict(zip(names, await asyncio.gather(*(live(http, name) for name in names)), strict=True))
    for name, made in lives.items():
        events = (await ask(http, "GET", f"{name}/events?limit=100"))["items"]
        assert [event["seq"] for event in events] == list(range(1, 4 * TURNS + 1))
        assert made[-1]["epoch"] > 1, "the window is too wide for an epoch to open"
        for context in made:
            again = await ask(http, "GET", f"{name}/calls/{context['call_id']}/context")
            assert (again["sha256"], again["request"]) == (context["sha256"], context["request"])


async def test_a_client_that_sends_its_whole_list_gets_its_lines(http: httpx.AsyncClient) -> None:
    one, two = {"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}
    three, four = {"role": "user", "content": "three"}, {"role": "user", "content": "four"}
    lists = [[one], [one, two, three], [one, two, three], [one, two, four], [one, two, three, two]]
    made = [await ask(http, "POST", "whole/context", {"messages": messages}) for messages in lists]
    assert [(each["line"], len(each["appended"]), each["head"]) for each in made] == [
        ("whole@line.1", 1, 1),
        ("whole@line.1", 2, 3),
        ("whole@line.1", 0, 3),
        ("whole@line.2", 1, 3),
        ("whole@line.1", 1, 4),
    ]
    assert [each["request"]["messages"] for each in made] == lists


async def test_requests_refused_on_one_postgres_are_refused_and_change_nothing(http: httpx.AsyncClient) -> None:
    first = await ask(http, "POST", "strict/events", {"events": turn("strict", 0)}, 201)
    again = await ask(http, "POST", "strict/events", {"events": turn("strict", 0)[:1]}, 200)
    assert again["events"][0]["seq"] == 1
    changed = {"events": [{**turn("strict", 0)[0], "content": "else"}]}
    assert (await ask(http, "POST", "strict/events", changed, 409))["type"] == "/problems/idempotency-conflict"
    answered = {"events": [{"type": "tool.result", "call_id": "strict.0", "content": "twice"}]}
    assert (await ask(http, "POST", "strict/events", answered, 422))["type"] == "/problems/unknown-call"
    late = {"events": [{"type": "user.message", "content": "late"}], "expected_head": first["head"] - 1}
    assert (await ask(http, "POST", "strict/events", late, 409))["type"] == "/problems/head-conflict"
    keyed = [
        await http.post("/v1/sessions/strict/events", json={"events": [event]}, headers={"Idempotency-Key": "k"})
        for event in ({"type": "user.message", "content": "a"}, {"type": "user.message", "content": "b"})
    ]
    assert [answer.status_code for answer in keyed] == [201, 409]
    assert [event["seq"] for event in (await ask(http, "GET", "strict/events"))["items"]] == [1, 2, 3, 4, 5]


async def test_appends_at_once_take_one_seq_after_the_other_and_one_key_is_used_once(http: httpx.AsyncClient) -> None:
    def one(text: str, **headers: str) -> Any:
        body = {"events": [{"type": "user.message", "content": text}]}
        return http.post("/v1/sessions/busy/events", json=body, headers=headers)

    made = await asyncio.gather(
        *(one(str(n)) for n in range(20)), *(one("k", **{"Idempotency-Key": "k"}) for _ in "abc")
    )
    assert sorted(answer.status_code for answer in made) == [200, 200, *[201] * 21]
    assert [event["seq"] for event in (await ask(http, "GET", "busy/events"))["items"]] == list(range(1, 22))
    assert len({answer.json()["head"] for answer in made[20:]}) == 1


async def test_no_tenant_sees_or_writes_anothers_rows(http: httpx.AsyncClient, live_url: str) -> None:
    await ask(http, "POST", "mine/events", {"events": turn("mine", 0)}, 201)
    for path in ("mine", "mine/events", "mine/context"):
        assert (await http.get(f"/v1/sessions/{path}", headers=OTHERS)).status_code == 404
    body = {"events": [{"type": "user.message", "content": "other"}]}
    appended = await http.post("/v1/sessions/mine/events", json=body, headers=OTHERS)
    assert appended.json()["head"] == 1, "a session of their own, of the same name"
    database = Database(live_url, pool_size=2, find_placement=find_placement)
    tenants = await _as_owner(live_url, "SELECT tenant_id FROM tenants WHERE name IN ('acme', 'other') ORDER BY name")
    for tenant in tenants:
        with acting_for(tenant["tenant_id"]):
            seen = await database.fetch("SELECT DISTINCT tenant_id FROM events")
            assert [row["tenant_id"] for row in seen] == [tenant["tenant_id"]]
    assert await database.fetch("SELECT FROM sessions") == []
    assert await _as_owner(live_url, "SELECT FROM pg_dist_partition WHERE logicalrelid = 'sessions'::regclass")
    await database.close()


async def test_while_a_node_is_down_sessions_on_others_continue(
    http: httpx.AsyncClient, cluster: nodes.Cluster
) -> None:
    names = [f"spread-{number}" for number in range(12)]
    for name in names:
        await ask(http, "POST", f"{name}/events", {"events": turn(name, 0)}, 201)

    async def answers() -> Counter[int]:
        return Counter([(await http.get(f"/v1/sessions/{name}")).status_code for name in names])

    with cluster.without(1):
        assert set(await answers()) == {200, 503}
    assert await answers() == {200: len(names)}


@pytest.fixture
async def database(live_url: str) -> AsyncIterator[Database]:
    """Return a pool of few connections, as in a process that queues jobs."""
    pool = Database(live_url, pool_size=2, find_placement=find_placement)
    with acting_for(DEFAULT_TENANT):
        yield pool
    await pool.close()


async def new_session(database: Database, name: str) -> UUID:
    """Create a session of the default tenant."""
    assert await sessions.create(database, DEFAULT_TENANT, name, sessions.SessionSettings(), estimator="chars")
    return session_key(DEFAULT_TENANT, name)


async def test_an_append_that_makes_compaction_due_queues_its_job(http: httpx.AsyncClient, live_url: str) -> None:
    await ask(http, "PUT", "due", {"policy": POLICY}, 201)
    for number in range(TURNS):
        await ask(http, "POST", "due/events", {"events": turn("due", number)}, 201)
    rows = await _as_owner(live_url, "SELECT session_id FROM sessions WHERE external_id = 'due'")
    assert await _jobs(live_url, f"compact:{rows[0]['session_id']}") == ["queued"]


async def test_a_job_is_queued_before_its_cause_is_committed(database: Database, live_url: str) -> None:
    """So a crash between the two commits leaves a job without work, and never work without a job."""
    session_id = await new_session(database, "undone")
    with pytest.raises(ZeroDivisionError):
        async with database.transaction() as tx:
            await compactions.enqueue(tx, SessionRef(session_id, DEFAULT_TENANT))
            assert await _jobs(live_url, f"compact:{session_id}") == ["queued"]
            raise ZeroDivisionError
    assert await _jobs(live_url, f"compact:{session_id}") == ["queued"]


async def test_a_waiter_for_a_finishing_job_queues_the_next(database: Database, live_url: str) -> None:
    session_id = await new_session(database, "next")
    await compactions.enqueue(database, SessionRef(session_id, DEFAULT_TENANT))
    taken = "UPDATE pgqueuer SET status = 'picked' WHERE dedupe_key = $1 RETURNING id"
    job = (await _as_owner(live_url, taken, f"compact:{session_id}"))[0]["id"]
    async with database.transaction() as tx:
        assert await compactions.release_session(tx, session_id, job, None)
        next_one = asyncio.create_task(compactions.enqueue(database, SessionRef(session_id, DEFAULT_TENANT)))
        await _wait_for_lock(live_url)
        assert await _jobs(live_url, f"compact:{session_id}") == []
    await next_one
    assert await _jobs(live_url, f"compact:{session_id}") == ["queued"]


async def test_all_connections_at_work_do_not_keep_jobs_from_being_made(database: Database, live_url: str) -> None:
    """The queue has other connections: waiting for one of the same pool would be a deadlock."""
    ids = [await new_session(database, f"full-{number}") for number in range(4)]
    both = asyncio.Barrier(2)

    async def work(session_id: UUID) -> list[str]:
        async def inside(tx: Connection) -> None:
            await both.wait()
            await compactions.enqueue(tx, SessionRef(session_id, DEFAULT_TENANT))

        await database.run_in_transaction(inside)
        return await _jobs(live_url, f"compact:{session_id}")

    assert await asyncio.gather(*map(work, ids)) == [["queued"]] * 4


async def _as_owner(url: str, sql: str, *values: object) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(url)
    try:
        return list(await connection.fetch(sql, *values))
    finally:
        await connection.close()


async def _jobs(url: str, key: str) -> list[str]:
    """Return the states of the jobs with a key."""
    rows = await _as_owner(url, "SELECT status::text FROM pgqueuer WHERE dedupe_key = $1", key)
    return [row["status"] for row in rows]


async def _wait_for_lock(url: str) -> None:
    """Return when a statement waits for a row on any node."""
    while not await _as_owner(url, "SELECT FROM citus_lock_waits"):  # polled, because there is no notification
        pass
