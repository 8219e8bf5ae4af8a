"""Webhooks over HTTP: signed, delivered at least once under one id, retried, and never blocking other work."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import httpx
import pytest

from app import worker
from app.runtime import wiring
from app.runtime.settings import Settings
from app.store.engine import Database
from app.tenants import Tenants
from app.wings.webhooks import store
from app.wings.webhooks.jobs import Deliveries, Poster, PostError
from app.wings.webhooks.service import WEBHOOKS_MAX
from tests.conformance.agent import Agent, Json
from tests.conftest import serving
from tests.contract.summaries.test_summaries import SMALL, append_turns
from tests.support.deliveries import retrying
from tests.support.pooler import pooled
from tests.support.receiver import SECRET, Receiver, receiving
from tests.support.sse import streaming, take

HOOK = "/v1/webhooks/h"
STARTED, FINISHED = "compaction.started", "compaction.finished"
ALL = ["compaction.scheduled", STARTED, FINISHED, "compaction.failed"]
SECONDS_MAX = 60


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as found:
        yield found


@pytest.fixture(autouse=True)
def fast_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "DEQUEUE_TIMEOUT", timedelta(seconds=0.1))


@asynccontextmanager
async def working(
    database_url: str,
    delays: tuple[float, ...] = (0.01, 0.01),
    seconds: float = 10.0,
    sending: type[Deliveries] = Deliveries,
) -> AsyncIterator[None]:
    """Run a worker that retries deliveries after these delays."""
    stop = asyncio.Event()
    work = retrying(wiring.worker_work(pooled(Settings(), database_url)), delays, seconds, sending)
    running = asyncio.create_task(worker.run(database_url, stop, work))
    try:
        yield
    finally:
        stop.set()
        await running


async def put(http: httpx.AsyncClient, url: str, *events: str, name: str = "h", **more: Any) -> httpx.Response:
    return await http.put(f"/v1/webhooks/{name}", json={"url": url, "events": events or [FINISHED], **more})


async def request_skipped_run(http: httpx.AsyncClient, session: str = "s") -> Json:
    """Request a run of a session with nothing to compact, the shortest way to cause a notification; return the run."""
    event = {"type": "user.message", "content": "small"}
    (await http.post(f"/v1/sessions/{session}/events", json={"events": [event]})).raise_for_status()
    run: Json = (await http.post(f"/v1/sessions/{session}/compactions", json={"wait_ms": 0})).json()
    return run


async def deliveries(http: httpx.AsyncClient, **params: Any) -> list[Json]:
    answer = await http.get(f"{HOOK}/deliveries", params=params)
    assert answer.status_code == 200, answer.text
    found: list[Json] = answer.json()["items"]
    return found


async def wait_for_deliveries(http: httpx.AsyncClient, number: int = 1, *states: str) -> list[Json]:
    """Return the deliveries once there are `number` of them, all in one of these states."""
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            found = await deliveries(http)
            if len(found) >= number and all(item["state"] in (states or ("delivered", "failed")) for item in found):
                return found


@pytest.mark.wing("stream")
async def test_a_compaction_is_notified_before_and_after(
    server: str, client: httpx.AsyncClient, database_url: str, receiver: Receiver
) -> None:
    made = await put(client, receiver.url, *ALL)
    assert made.status_code == 201
    secret = made.json()["secret"]
    agent = await Agent.begin(client, SMALL)
    await append_turns(agent, 20)
    async with working(database_url):
        asked = (await client.post("/v1/sessions/s/compactions", json={"wait_ms": 60_000})).json()
        calls = await receiver.called(3)
        listed = await wait_for_deliveries(client, 3)
    async with streaming(server, "/v1/sessions/s/stream", types="compaction") as events:
        streamed = {event.data["state"]: event.data for event in await take(events, 3)}
    by_type = {call.value["type"]: call for call in calls}
    assert list(sorted(by_type)) == sorted(ALL[:3])
    for kind, call in by_type.items():
        data = call.value["data"]
        assert call.is_signed_with(secret)
        assert not call.is_signed_with(SECRET)
        assert call.headers["content-type"] == "application/json"
        assert abs(int(call.headers["webhook-timestamp"]) - time.time()) < SECONDS_MAX
        assert datetime.fromisoformat(call.value["timestamp"]).tzinfo is not None
        assert data["run"]["id"] == asked["id"]
        assert normal(data) == normal(streamed[kind.removeprefix("compaction.")])
    assert {item["id"] for item in listed} == {call.id for call in calls}
    assert {(item["session"], item["state"], item["attempts"], item["status"]) for item in listed} == {
        ("s", "delivered", 1, 204)
    }
    before, after = streamed["started"], streamed["finished"]
    assert after["run"] == (await client.get(f"/v1/sessions/s/compactions/{asked['id']}")).json()
    assert before["tokens"]["before"] == after["tokens"]["before"] == asked["tokens_before"] > 0
    assert after["tokens"]["after"] == asked["tokens_after"] < asked["tokens_before"]
    assert after["tokens"]["compacted"] == asked["tokens_before"] - asked["tokens_after"]
    assert after["kept_from_seq"] == asked["to_seq"] + 1


def normal(data: Json) -> Json:
    """Parse a payload's times: the API writes UTC as Z, the database as an offset."""
    run = {
        key: datetime.fromisoformat(value) if key.endswith("_at") and value else value
        for key, value in data["run"].items()
    }
    return {**data, "run": run}


async def test_a_failed_delivery_is_retried_under_the_same_id(
    client: httpx.AsyncClient, database_url: str, receiver: Receiver
) -> None:
    receiver.statuses.extend([500, 302])
    receiver.headers["location"] = receiver.url + "&redirected"
    await put(client, receiver.url, secret=SECRET)
    async with working(database_url):
        await request_skipped_run(client)
        [item] = await wait_for_deliveries(client)
    assert (item["state"], item["attempts"], item["status"], item["error"]) == ("delivered", 3, 204, None)
    assert [call.id for call in receiver.calls] == [item["id"]] * 3
    assert len({call.body for call in receiver.calls}) == 1
    assert all(call.is_signed_with(SECRET) for call in receiver.calls)


async def test_a_failed_delivery_is_listed_and_can_be_retried(
    client: httpx.AsyncClient, database_url: str, receiver: Receiver
) -> None:
    receiver.statuses.extend([500, 503, 429])
    await put(client, receiver.url)
    async with working(database_url):
        await request_skipped_run(client)
        [item] = await wait_for_deliveries(client)
        assert (item["state"], item["attempts"], item["status"], item["error"]) == ("failed", 3, 429, "answered 429")
        assert (item["next_attempt_at"], item["finished_at"] is not None) == (None, True)
        assert await deliveries(client, state="failed") == [item]
        assert await deliveries(client, state="delivered") == []
        answer = await client.post(f"{HOOK}/deliveries/{item['id']}:retry")
        assert (answer.status_code, answer.json()["state"]) == (202, "pending")
        [again] = await wait_for_deliveries(client, 1, "delivered")
        assert (again["id"], again["attempts"], again["error"]) == (item["id"], 1, None)
        assert [call.id for call in receiver.calls] == [item["id"]] * 4
        twice = await client.post(f"{HOOK}/deliveries/{item['id']}:retry")
        assert (twice.status_code, twice.json()["type"]) == (409, "/problems/conflict")


async def test_a_receiver_that_is_silent_or_absent_is_a_failure(
    client: httpx.AsyncClient, database_url: str, receiver: Receiver
) -> None:
    receiver.statuses.extend([0])
    await put(client, receiver.url)
    async with working(database_url, delays=(0.01,), seconds=0.2):
        await request_skipped_run(client)
        [item] = await wait_for_deliveries(client)
        assert (item["state"], item["attempts"]) == ("delivered", 2)
        receiver.statuses.extend([0, 0])
        await request_skipped_run(client, "other")
        [newest, _] = await wait_for_deliveries(client, 2)
        assert (newest["session"], newest["state"], newest["status"]) == ("other", "failed", None)
        assert newest["error"] == "no answer within 0.2 seconds"
        await put(client, "http://127.0.0.1:9/nobody")
        await request_skipped_run(client, "third")
        [newest, *_] = await wait_for_deliveries(client, 3)
        assert newest["state"] == "failed"
        assert newest["error"].startswith("ConnectError")


async def test_retry_after_and_410_are_respected(
    client: httpx.AsyncClient, database_url: str, receiver: Receiver
) -> None:
    receiver.statuses.extend([429, 410])
    receiver.headers["retry-after"] = "3600"
    await put(client, receiver.url)
    async with working(database_url, delays=(0.01, 7_200.0)):
        await request_skipped_run(client)
        await receiver.called(1)
        async with asyncio.timeout(SECONDS_MAX):
            while not (item := (await deliveries(client))[0])["attempts"]:
                pass
        assert (item["state"], item["status"]) == ("pending", 429)
        waits = datetime.fromisoformat(item["next_attempt_at"]) - datetime.fromisoformat(item["created_at"])
        assert waits >= timedelta(seconds=3600)
        answer = await client.post(f"{HOOK}/deliveries/{item['id']}:retry")  # a client may retry earlier
        assert answer.status_code == 202
        [item] = await wait_for_deliveries(client)
        assert (item["state"], item["attempts"], item["status"]) == ("failed", 1, 410)


async def test_a_retry_requested_while_an_attempts_job_ends_is_made_immediately(
    client: httpx.AsyncClient, database_url: str, receiver: Receiver
) -> None:
    attempted, asked = asyncio.Event(), asyncio.Event()

    class Lingering(Deliveries):
        """A delivery whose first job continues after its attempt was recorded, until the retry was requested."""

        async def send(self, session_id: UUID, id: UUID) -> None:
            await super().send(session_id, id)
            attempted.set()
            await asked.wait()

    receiver.statuses.extend([500])
    await put(client, receiver.url)
    async with working(database_url, delays=(3_600.0,), sending=Lingering):
        await request_skipped_run(client)
        await attempted.wait()
        [item] = await deliveries(client)
        answer = await client.post(f"{HOOK}/deliveries/{item['id']}:retry")
        assert answer.status_code == 202
        asked.set()
        [item] = await wait_for_deliveries(client)
    assert (item["state"], item["attempts"], item["status"]) == ("delivered", 1, 204)


@pytest.mark.parametrize(
    "retry_after",
    [
        "Fri, 31 Dec 99999 23:59:59 GMT",
        "Fri, 31 Dec 9999 23:59:59 -2359",
        "inf",
        "nan",
        "-1",
        "1e400",
        "9" * 400,
        "soon",
    ],
)
async def test_an_invalid_retry_after_does_not_stop_a_delivery(
    client: httpx.AsyncClient, database_url: str, receiver: Receiver, retry_after: str
) -> None:
    receiver.statuses.extend([503, 503])
    receiver.headers["retry-after"] = retry_after
    await put(client, receiver.url)
    async with working(database_url, delays=(0.01,)):
        await request_skipped_run(client)
        [item] = await wait_for_deliveries(client)
    assert (item["state"], item["attempts"], item["status"]) == ("failed", 2, 503)


@pytest.mark.parametrize(
    "url",
    [
        "http://a..b/",
        f"http://{'a' * 64}.com/",
        "http://xn--a/",
        "http://xn--ls8h.invalid/",
        "http://[v1.x]/",
        "http://",
    ],
)
async def test_an_invalid_host_does_not_stop_a_delivery(
    client: httpx.AsyncClient, database_url: str, database: Database, url: str
) -> None:
    """Such URLs are refused now, but earlier versions may have stored them."""
    await put(client, "http://127.0.0.1:9/")
    await database.execute("UPDATE webhooks SET url = :url", url=url)
    async with working(database_url, delays=(0.01,)):
        await request_skipped_run(client)
        [item] = await wait_for_deliveries(client)
    assert (item["state"], item["attempts"], item["status"]) == ("failed", 2, None)
    assert item["error"] and not item["error"].startswith("internal error")


async def test_a_receiver_that_hangs_does_not_block_compactions(
    client: httpx.AsyncClient, database_url: str, receiver: Receiver
) -> None:
    receiver.statuses.extend([0] * 10)
    await put(client, receiver.url, *ALL)
    agent = await Agent.begin(client, SMALL)
    await append_turns(agent, 20)
    async with working(database_url, delays=(), seconds=SECONDS_MAX):
        run = (await client.post("/v1/sessions/s/compactions", json={"wait_ms": 60_000})).json()
        assert run["state"] == "succeeded"
        assert len(await receiver.called(3)) == 3
        assert {item["state"] for item in await deliveries(client)} == {"pending"}
        receiver.close()
        await wait_for_deliveries(client, 3, "delivered")


async def test_a_delivery_with_a_lost_job_is_found(
    client: httpx.AsyncClient, database: Database, database_url: str, receiver: Receiver
) -> None:
    await put(client, receiver.url, "compaction.scheduled")
    await request_skipped_run(client)
    await database.execute("DELETE FROM pgqueuer WHERE entrypoint = 'deliver'")
    assert await store.enqueue_overdue(database, 60.0) == 0
    await database.execute("UPDATE deliveries SET next_at = now() - interval '2 minutes'")
    assert await store.enqueue_overdue(database, 60.0) == 1
    assert await store.enqueue_overdue(database, 60.0) == 0
    async with working(database_url):
        [item] = await wait_for_deliveries(client)
    assert [call.id for call in receiver.calls] == [item["id"]]


async def test_only_old_finished_deliveries_are_purged(
    client: httpx.AsyncClient, database: Database, receiver: Receiver
) -> None:
    await put(client, receiver.url, "compaction.scheduled")
    for name in ("a", "b", "c"):
        await request_skipped_run(client, name)
    old = (
        "UPDATE deliveries SET created_at = now() - interval '31 days', state = :state, finished_at = {} WHERE id = :id"
    )
    first, second, third = await deliveries(client)
    await database.execute(old.format("now() - interval '31 days'"), state="failed", id=first["id"])
    await database.execute(old.format("now() - interval '29 days'"), state="delivered", id=second["id"])
    await database.execute(old.format("NULL"), state="pending", id=third["id"])
    assert await store.purge(database) == 1
    assert {item["id"] for item in await deliveries(client)} == {second["id"], third["id"]}


async def test_a_webhook_is_stored_listed_changed_and_deleted_and_its_secret_is_shown_once(
    client: httpx.AsyncClient, database: Database
) -> None:
    made = await put(client, "https://example.com/a", STARTED, STARTED, FINISHED)
    assert made.status_code == 201
    assert made.json()["secret"].startswith("whsec_")
    shown = {key: value for key, value in made.json().items() if key != "secret"}
    assert shown["events"] == [STARTED, FINISHED]
    assert (await client.get(HOOK)).json() == shown
    changed = await put(client, "https://example.com/b", FINISHED)
    assert (changed.status_code, changed.json()["secret"], changed.json()["url"]) == (
        200,
        None,
        "https://example.com/b",
    )
    [row] = await database.fetch("SELECT secret FROM webhooks")
    assert row["secret"] == made.json()["secret"]
    await put(client, "https://example.com/b", FINISHED, secret=SECRET)
    [row] = await database.fetch("SELECT secret FROM webhooks")
    assert row["secret"] == SECRET
    own = await put(client, "https://example.com/c", FINISHED, name="A", secret=SECRET)
    assert (own.status_code, own.json()["secret"]) == (201, None)
    page = (await client.get("/v1/webhooks", params={"limit": 1})).json()
    assert [item["name"] for item in page["items"]] == ["A"]
    rest = (await client.get("/v1/webhooks", params={"cursor": page["next_cursor"]})).json()
    assert ([item["name"] for item in rest["items"]], rest["next_cursor"]) == (["h"], None)
    for answer in (await client.get("/v1/webhooks"), await client.get(HOOK)):
        assert "whsec_" not in answer.text
    assert (await client.delete(HOOK)).status_code == 204
    for gone in (await client.delete(HOOK), await client.get(HOOK), await client.get(f"{HOOK}/deliveries")):
        assert (gone.status_code, gone.json()["type"]) == (404, "/problems/not-found")
    assert (await client.post(f"{HOOK}/deliveries/{'0' * 32}:retry")).status_code == 404


@pytest.mark.parametrize(
    ("field", "body"),
    [
        ("url", {"url": "ftp://example.com/"}),
        ("url", {"url": "https://"}),
        ("url", {"url": "https://user:word@example.com/"}),
        ("url", {"url": "https://example.com/#part"}),
        ("url", {"url": "https://exämple.com/"}),
        ("url", {"url": "https://example.com/a b"}),
        ("url", {"url": "https://example.com:99999/"}),
        ("url", {"url": "https://[::1/"}),
        ("url", {"url": "https://[v1.x]/"}),
        ("url", {"url": "https://a..b/"}),
        ("url", {"url": "https://.a/"}),
        ("url", {"url": "https://%61.b/"}),
        ("url", {"url": "https://" + "a" * 64 + ".com/"}),
        ("url", {"url": "https://" + "a." * 126 + "com/"}),
        ("url", {"url": "https://example.com/" + "x" * 2_048}),
        ("events.0", {"events": ["compaction.dreamt"]}),
        ("events", {"events": []}),
        ("secret", {"secret": "whsec_c2hvcnQ="}),
        ("secret", {"secret": "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}),
        ("secret", {"secret": "whsec_" + "!" * 40}),
        ("colour", {"colour": "red"}),
    ],
)
async def test_invalid_webhooks_are_refused(refusing: httpx.AsyncClient, field: str, body: Json) -> None:
    answer = await refusing.put(HOOK, json={"url": "https://example.com/", "events": [FINISHED], **body})
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/invalid-request")
    assert answer.json()["field"] == field
    assert (await refusing.get("/v1/webhooks")).json()["items"] == []


async def test_the_number_of_webhooks_is_limited(client: httpx.AsyncClient) -> None:
    for number in range(WEBHOOKS_MAX):
        assert (await put(client, "https://example.com/", name=f"h{number}")).status_code == 201
    assert (await put(client, "https://example.com/", name="one-more")).status_code == 422
    assert (await put(client, "https://example.com/", name="h7")).status_code == 200


async def test_only_admins_manage_webhooks_and_only_their_tenants(
    client: httpx.AsyncClient, database: Database, receiver: Receiver
) -> None:
    await put(client, receiver.url, "compaction.scheduled")
    tenants = Tenants(database, None)
    writer = await tenants.create_key("default", "w", ["ingest", "read", "audit"])
    other = await tenants.create_key("other", "k", ["admin"])
    client.headers["Authorization"] = f"Bearer {writer.secret}"
    await request_skipped_run(client)
    assert (await client.get(HOOK)).status_code == 403
    client.headers["Authorization"] = f"Bearer {other.secret}"
    assert (await client.get("/v1/webhooks")).json()["items"] == []
    assert (await client.get(HOOK)).status_code == 404
    await request_skipped_run(client)
    rows = await database.fetch("SELECT tenant_id FROM deliveries")
    assert len(rows) == 1


@pytest.mark.parametrize(
    ("setting", "with_key", "status"),
    [(None, False, 201), (None, True, 422), (True, True, 201), (False, False, 422)],
)
@pytest.mark.parametrize("url", ["http://127.0.0.1:9/", "http://localhost/", "http://[::ffff:10.0.0.1]/"])
async def test_private_targets_are_allowed_by_setting_or_without_keys(
    database_url: str, setting: bool | None, with_key: bool, status: int, url: str
) -> None:
    key = "bootstrap-" + "k" * 20 if with_key else None
    async with (
        serving(Settings(webhook_private_targets=setting, api_key=key), database_url) as base,
        httpx.AsyncClient(base_url=base, headers={"Authorization": f"Bearer {key}"} if key else {}) as http,
    ):
        assert (await put(http, url)).status_code == status
        assert (await put(http, "https://example.com/", name="public")).status_code == 201


async def test_a_name_that_resolves_to_a_private_address_is_not_called(receiver: Receiver) -> None:
    poster = Poster(5.0)
    url = receiver.url.replace("127.0.0.1", "localhost")
    with pytest.raises(PostError, match="private"):
        await poster.post(url, {}, "{}", private=False)
    assert receiver.calls == []
    answer = await poster.post(url, {}, "{}", private=True)
    assert answer.status == 204
    assert receiver.calls[0].headers["host"].startswith("localhost:")
    with pytest.raises(PostError, match="resolved"):
        await poster.post("http://nowhere.invalid/", {}, "{}", private=True)
    await poster.aclose()


async def test_forbidding_private_targets_applies_to_existing_webhooks(
    client: httpx.AsyncClient, database: Database, receiver: Receiver
) -> None:
    await put(client, receiver.url, "compaction.scheduled")
    await request_skipped_run(client)
    [row] = await database.fetch("SELECT session_id, id FROM deliveries")
    sending = Deliveries(database, Poster(5.0), private_targets=False, delays=())
    await sending.send(row["session_id"], row["id"])
    await sending.aclose()
    assert receiver.calls == []
    [item] = await deliveries(client)
    assert (item["state"], item["status"]) == ("failed", None)
    assert "private" in item["error"]


async def test_an_erased_session_has_no_deliveries(
    client: httpx.AsyncClient, database: Database, database_url: str, receiver: Receiver
) -> None:
    await put(client, receiver.url, "compaction.scheduled")
    await request_skipped_run(client)
    await request_skipped_run(client, "other")
    assert (await client.delete("/v1/sessions/s")).status_code == 204
    async with working(database_url):
        [item] = await wait_for_deliveries(client)
        assert item["session"] == "other"
        async with asyncio.timeout(SECONDS_MAX):
            while await database.fetch("SELECT FROM pgqueuer"):
                pass
    assert len(receiver.calls) == 1
