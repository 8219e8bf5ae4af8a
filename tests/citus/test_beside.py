"""Operations outside the hot path have the same effects on one Postgres and on shards."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from app.runtime.wing import find_placement
from app.store import compactions, deletion, jobs, layers, summaries
from app.store.compactions import RunOutcome
from app.store.engine import Database, acting_for
from app.store.ids import SessionRef, session_key
from app.wings.shards.placement import notify_epoch_opened
from app.wings.webhooks import store as webhooks

pytestmark = [pytest.mark.citus, pytest.mark.wing("shards")]


@dataclass(frozen=True)
class Place:
    """A database with a tenant of the test's own; `owner` sees all tenants' rows."""

    database: Database
    owner: asyncpg.Connection
    tenant_id: UUID
    distributed: bool

    async def session(self, name: str) -> UUID:
        """Create a session with one event and an active stream."""
        session_id = session_key(self.tenant_id, name)
        await self.owner.execute(
            "INSERT INTO sessions (session_id, tenant_id, external_id, estimator, head, streamed_until)"
            " VALUES ($1, $2, $3, 'chars', 1, now() + interval '1 hour')",
            *(session_id, self.tenant_id, name),
        )
        await self.owner.execute(
            "INSERT INTO events (session_id, tenant_id, seq, turn, type, pinned, is_error, tokens, cum_tokens, body)"
            " VALUES ($1, $2, 1, 1, 'user.message', false, false, 1, 1, '{}')",
            *(session_id, self.tenant_id),
        )
        return session_id

    def ref(self, session_id: UUID) -> SessionRef:
        """Return the ids of a session of the tenant."""
        return SessionRef(session_id, self.tenant_id)

    async def hook(self, *events: str) -> None:
        await self.owner.execute(
            "INSERT INTO webhooks (tenant_id, name, url, events, secret, private_targets)"
            " VALUES ($1, 'h', 'http://h', $2, 's', true)",
            *(self.tenant_id, [f"compaction.{event}" for event in events]),
        )

    async def told(self, session_id: UUID) -> list[dict[str, Any]]:
        """Return the session's changes, in order."""
        rows = await self.owner.fetch(
            "SELECT number, body::text FROM changes WHERE session_id = $1 ORDER BY number", session_id
        )
        assert [row["number"] for row in rows] == list(range(1, len(rows) + 1))
        return [json.loads(row["body"]) for row in rows]

    async def jobs(self, kind: str) -> list[str]:
        rows = await self.owner.fetch(
            "SELECT convert_from(payload, 'UTF8') AS payload FROM pgqueuer WHERE entrypoint = $1 AND status = 'queued'",
            kind,
        )
        return [row["payload"] for row in rows]


@pytest.fixture(params=["one", "shards"])
async def place(request: pytest.FixtureRequest, one_url: str, shards_url: str) -> AsyncIterator[Place]:
    url = shards_url if request.param == "shards" else one_url
    tenant_id = uuid4()
    owner = await asyncpg.connect(url, server_settings={"plan_cache_mode": "force_custom_plan"})
    await owner.execute("INSERT INTO tenants (tenant_id, name) VALUES ($1, $2)", tenant_id, str(tenant_id))
    database = Database(url, pool_size=4, find_placement=find_placement)
    with acting_for(tenant_id):
        yield Place(database, owner, tenant_id, request.param == "shards")
    await database.close()
    for table in ("pgqueuer", "deliveries", "compactions"):
        await owner.execute(f"DELETE FROM {table}")
    await owner.close()


@asynccontextmanager
async def notified_sessions(place: Place) -> AsyncIterator[list[str]]:
    """Return the sessions that the coordinator notifies of."""
    found: list[str] = []
    await place.owner.add_listener("palimpsest_stream", lambda *said: found.append(said[-1]))
    yield found
    await place.owner.execute("SELECT 1")  # all earlier notifications have arrived


async def schedule_run(place: Place, session_id: UUID) -> UUID:
    id = uuid4()
    async with place.database.transaction() as tx:
        await compactions.schedule(tx, place.ref(session_id), id, "requested", focus="the parser")
    return id


async def test_each_step_of_a_run_is_sent_once_to_the_stream_and_to_webhooks(place: Place) -> None:
    session_id = await place.session("told")
    await place.hook("scheduled", "started", "finished")
    async with notified_sessions(place) as notified:
        id = await schedule_run(place, session_id)
        await compactions.begin(place.database, place.ref(session_id), id, "requested", 900)
        await compactions.begin(place.database, place.ref(session_id), id, "requested", 900)  # already running
        assert await compactions.reschedule(place.database, session_id, id, "not now") == 1
        await compactions.begin(place.database, place.ref(session_id), id, "requested", 900)
        await compactions.end(place.database, session_id, [id], RunOutcome("succeeded", None, (), 1, 1, 5, 0, 300))
        await compactions.end(place.database, session_id, [id], RunOutcome("failed", "too late"))
    assert notified == [str(session_id)] * 5
    told = await place.told(session_id)
    assert [one["state"] for one in told] == ["scheduled", "started", "scheduled", "started", "finished"]
    assert [one["will_retry"] for one in told] == [False, False, True, False, False]
    assert told[0]["session"] == "told" and told[0]["run"]["focus"] == "the parser" and told[0]["run"]["id"] == str(id)
    assert told[-1]["tokens"] == {"before": 900, "after": 300, "compacted": 600}
    assert told[-1]["run"]["finished_at"].endswith("+00:00")
    delivered = await webhooks.deliveries(place.database, place.tenant_id, "h", state=None, after=None, limit=10)
    assert [one.type.removeprefix("compaction.") for one in reversed(delivered)] == [one["state"] for one in told]
    assert {f"{session_id} {one.id}" for one in delivered} == set(await place.jobs("deliver"))
    assert await place.jobs("compact") == [f"{session_id} {place.tenant_id}"]
    rows = await place.owner.fetch("SELECT body FROM deliveries WHERE session_id = $1", session_id)
    assert sorted(json.loads(row["body"])["data"]["run"]["attempts"] for row in rows) == [0, 0, 1, 1, 1]


async def test_a_retried_run_is_notified_and_a_missing_one_is_not(place: Place) -> None:
    session_id = await place.session("again")
    id = await schedule_run(place, session_id)
    await compactions.end(place.database, session_id, [id], RunOutcome("failed", "no model"))
    async with place.database.transaction() as tx:
        assert await compactions.retry(tx, place.ref(session_id), id)
        assert not await compactions.retry(tx, place.ref(session_id), uuid4())
    told = await place.told(session_id)
    assert [one["state"] for one in told] == ["scheduled", "failed", "scheduled"]
    assert told[1]["aborted"] and told[1]["run"]["error"] == "no model"


async def test_rolled_back_changes_are_not_notified(place: Place) -> None:
    session_id = await place.session("undone")
    await place.hook("scheduled")
    with pytest.raises(RuntimeError):
        async with notified_sessions(place) as notified, place.database.transaction() as tx:
            await compactions.schedule(tx, place.ref(session_id), uuid4(), "requested")
            raise RuntimeError
    assert await place.told(session_id) == [] == await place.jobs("deliver") == notified


async def test_a_delivery_whose_job_is_lost_is_found(place: Place) -> None:
    """This happens if the coordinator dies after the shard's commit and before its own."""
    session_id = await place.session("lost")
    await place.hook("scheduled")
    await schedule_run(place, session_id)
    [job] = await place.jobs("deliver")
    assert await webhooks.enqueue_overdue(place.database, -1.0) == 0
    await place.owner.execute("DELETE FROM pgqueuer")
    assert await webhooks.enqueue_overdue(place.database, 60.0) == 0
    assert await webhooks.enqueue_overdue(place.database, -1.0) == 1
    assert await place.jobs("deliver") == [job]
    assert await compactions.enqueue_overdue(place.database, -1.0) >= 1
    assert f"{session_id} {place.tenant_id}" in await place.jobs("compact")


async def test_an_opened_epoch_is_notified(place: Place) -> None:
    session_id = await place.session("epochs")
    async with notified_sessions(place) as notified, place.database.transaction() as tx:
        await tx.execute(
            "INSERT INTO views (session_id, tenant_id, view, policy_name, policy_version, window_tokens, target, epoch,"
            " epochs, carry_tokens) VALUES (:session_id, :tenant_id, 'main', 'default', 1, 1000, 900, 1, 1, 0)",
            session_id=session_id,
            tenant_id=place.tenant_id,
        )
        await tx.execute(
            "INSERT INTO epochs (session_id, tenant_id, view, epoch, head, cause, frontier, tokens_before,"
            " tokens_after, floor, kept, stubbed, folded, evictions, evicted) VALUES (:session_id, :tenant_id, 'main',"
            " 1, 1, 'start', '{}', 7, 5, 0, '{}', '{}', '{}', '[]', '{}')",
            session_id=session_id,
            tenant_id=place.tenant_id,
        )
        if place.distributed:  # on one Postgres a trigger does it
            await notify_epoch_opened(tx, session_id, "main", 1)
    assert notified == [str(session_id)]
    [told] = await place.told(session_id)
    assert told.pop("created_at").endswith("+00:00")
    assert told == {
        **{"session": "epochs", "view": "main", "epoch": 1, "current": True, "cause": "start"},
        **{"head": 1, "tokens_before": 7, "tokens_after": 5},
    }


@pytest.mark.parametrize("error", [None, "refused"])
async def test_an_attempt_at_a_delivery_is_recorded(place: Place, error: str | None) -> None:
    session_id = await place.session(f"attempt {error}")
    await place.hook("scheduled")
    await schedule_run(place, session_id)
    [delivery] = await webhooks.deliveries(place.database, place.tenant_id, "h", state="pending", after=None, limit=10)
    assert await webhooks.tenant_of(place.database, session_id, delivery.id) == place.tenant_id
    due = await webhooks.find_due(place.database, session_id, delivery.id)
    assert due is not None and due.attempts == 0
    for delay in (50.0, None):
        seconds = await webhooks.record_attempt(
            place.database, session_id, delivery.id, status=500, error=error, delay=delay
        )
        assert seconds is None if error is None and delay is None else seconds is not None and 0 <= seconds < 49
    found = await webhooks.delivery(place.database, place.tenant_id, "h", delivery.id)
    assert found is not None and found.state == ("delivered" if error is None else "failed")
    assert found.attempts == (1 if error is None else 2) and found.finished_at is not None
    if error:
        async with place.database.transaction() as tx:
            assert await webhooks.retry(tx, place.tenant_id, "h", delivery.id)


async def test_a_purge_deletes_only_expired_rows_of_every_tenant(place: Place) -> None:
    times = [datetime.now(UTC) - timedelta(hours=hours) for hours in (1, 23, 25, 26, 27, 800, 900)]
    for number, at in enumerate(times):
        session_id = await place.session(f"purged {number}")
        await place.owner.execute(
            "INSERT INTO appends (session_id, tenant_id, key, request_sha256, answer, created_at)"
            " VALUES ($1, $2, 'k', '', '{}', $3)",
            *(session_id, place.tenant_id, at),
        )
        await place.owner.execute(
            "INSERT INTO deliveries (session_id, id, tenant_id, webhook, type, body, state, finished_at)"
            " SELECT $1::uuid, $2::uuid, $3::uuid, 'h', 't', '', 'delivered', $4::timestamptz WHERE false",
            *(session_id, uuid4(), place.tenant_id, at),
        )
    purge = "SELECT palimpsest_across_purge('appends', 2) AS gone"
    gone = [row["gone"] for _ in range(4) for row in await place.database.fetch(purge)]
    assert gone == [2, 2, 1, 0]
    left = "SELECT count(*) FROM appends WHERE tenant_id = $1"
    assert await place.owner.fetchval(left, place.tenant_id) == 2


async def test_finished_deliveries_are_deleted_after_a_month_and_pending_ones_stay(place: Place) -> None:
    session_id = await place.session("month")
    await place.hook("scheduled")
    ids = []
    for state, days in (("delivered", 29), ("delivered", 31), ("failed", 40), ("pending", 50)):
        ids.append(uuid4())
        await place.owner.execute(
            "INSERT INTO deliveries (session_id, id, tenant_id, webhook, type, body, state, finished_at)"
            " VALUES ($1, $2, $3, 'h', 't', '', $4, $5)",
            *(session_id, ids[-1], place.tenant_id, state, datetime.now(UTC) - timedelta(days=days)),
        )
    assert await webhooks.purge(place.database) == 2
    rows = await place.owner.fetch("SELECT id FROM deliveries WHERE session_id = $1", session_id)
    assert {row["id"] for row in rows} == {ids[0], ids[3]}
    assert await deletion.purge_calls(place.database) == 0


async def test_versions_of_layers_are_swept_by_session(place: Place) -> None:
    for name in ("swept", "swept too"):
        session_id = await place.session(name)
        for version, hours in ((1, 5), (2, 4), (3, 3)):
            await place.owner.execute(
                "INSERT INTO layers (session_id, tenant_id, kind, version, content, tokens, created_at)"
                " VALUES ($1, $2, 'sources', $3, '\"x\"', 1, $4)",
                *(session_id, place.tenant_id, version, datetime.now(UTC) - timedelta(hours=hours)),
            )
    page = await layers.page(place.database, (UUID(int=0), "", 0), 1_000)
    own = [one for one in page if one.tenant_id == place.tenant_id]
    assert [(one.version, one.until is None) for one in own] == [(1, False), (2, False), (3, True)] * 2
    old = [one for one in own if one.until is not None]
    async with place.database.transaction() as tx:
        assert await layers.sweep(tx, old, [(UUID(int=1), UUID(int=2))] * len(old)) == 4
    left = "SELECT DISTINCT version FROM layers WHERE tenant_id = $1"
    assert [row["version"] for row in await place.owner.fetch(left, place.tenant_id)] == [3]


async def test_degraded_summaries_are_found_across_tenants(place: Place) -> None:
    session_id = await place.session("degraded")
    await place.owner.execute(
        "INSERT INTO summaries (session_id, id, tenant_id, cover_id, depth, from_seq, to_seq, text, digest, tokens,"
        " source_tokens, events, turns, starts_at, ends_at, summarizer, usage, degraded, status)"
        " VALUES ($1, gen_random_uuid(), $2, $1, 0, 1, 1, '', '{}', 1, 1, 1, '{}', now(), now(), 's', '{}', true,"
        " 'live')",
        *(session_id, place.tenant_id),
    )
    assert (session_id, place.tenant_id) in await summaries.degraded(place.database, -1.0, 100)
    day = await jobs.reserve_tokens(place.database, place.tenant_id, 10, 15)
    assert day is not None
    assert await jobs.reserve_tokens(place.database, place.tenant_id, 10, 15) is None
    assert (session_id, place.tenant_id) not in await summaries.degraded(place.database, -1.0, 100)
    await jobs.settle_tokens(place.database, place.tenant_id, day, 10, 4)
    assert await jobs.reserve_tokens(place.database, place.tenant_id, 10, 15) == day
