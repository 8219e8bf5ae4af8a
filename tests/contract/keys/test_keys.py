"""Keys over HTTP: creation, listing and revocation by scope and prefix, expiry, and the time of last use."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import httpx
import pytest

from app.runtime.settings import Settings
from app.store import keys
from app.store.engine import Database
from app.tenants import EVERY_SECONDS, Tenants, digest
from tests.conftest import serving

pytestmark = pytest.mark.usefixtures("database_url")  # without keys at first

SECONDS_MAX = 20
ADMIN = {"name": "admin", "scopes": ["admin"]}
Json = dict[str, Any]


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


async def mint(http: httpx.AsyncClient, admin: str | None, **asked: Any) -> Json:
    body = {"name": "k", "scopes": ["ingest", "read"]} | asked
    answer = await http.post("/v1/keys", json=body, headers={} if admin is None else bearer(admin))
    assert answer.status_code == 201, answer.text
    found: Json = answer.json()
    return found


async def list_keys(http: httpx.AsyncClient, admin: str, **params: Any) -> list[Json]:
    answer = await http.get("/v1/keys", params=params, headers=bearer(admin))
    assert answer.status_code == 200, answer.text
    items: list[Json] = answer.json()["items"]
    return items


@pytest.fixture
async def admin(client: httpx.AsyncClient) -> str:
    """The secret of the first key, after which the server requires keys."""
    return str((await mint(client, None, **ADMIN))["secret"])


async def test_a_key_is_created_listed_without_its_secret_and_revoked(client: httpx.AsyncClient, admin: str) -> None:
    until = (datetime.now(UTC) + timedelta(days=9)).replace(microsecond=0)
    key = await mint(client, admin, name="user 42", expires_at=until.isoformat(), session_prefix="user-42:")
    assert key["secret"].startswith("pal_")
    assert (await client.put("/v1/sessions/user-42:a", json={}, headers=bearer(key["secret"]))).status_code == 201
    (first, second) = await list_keys(client, admin)
    assert second["name"] == "admin"
    assert (first["id"], first["name"], first["scopes"]) == (key["id"], "user 42", ["ingest", "read"])
    assert (first["session_prefix"], datetime.fromisoformat(first["expires_at"])) == ("user-42:", until)
    assert first["revoked_at"] is None
    assert "secret" not in first
    for _ in range(2):
        assert (await client.delete(f"/v1/keys/{key['id']}", headers=bearer(admin))).status_code == 204
        refused = await client.get("/v1/sessions/user-42:a", headers=bearer(key["secret"]))
        assert (refused.status_code, refused.json()["type"]) == (401, "/problems/unauthorized")
    revoked = (await list_keys(client, admin))[0]["revoked_at"]
    assert revoked is not None
    await client.delete(f"/v1/keys/{key['id']}", headers=bearer(admin))
    assert (await list_keys(client, admin))[0]["revoked_at"] == revoked


async def test_keys_are_listed_in_pages(client: httpx.AsyncClient, admin: str) -> None:
    names = [str((await mint(client, admin, name=f"k{number}"))["name"]) for number in range(5)]
    seen: list[str] = []
    params: Json = {"limit": 2}
    while True:
        page = (await client.get("/v1/keys", params=params, headers=bearer(admin))).json()
        seen += [item["name"] for item in page["items"]]
        if page["next_cursor"] is None:
            break
        params["cursor"] = page["next_cursor"]
    assert seen == [*reversed(names), "admin"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"scopes": []},
        {"scopes": ["write"]},
        {"name": ""},
        {"name": "a\x00"},
        {"expires_at": "2020-01-01T00:00:00Z"},
        {"expires_at": "soon"},
        {"session_prefix": ""},
        {"session_prefix": "a b"},
        {"session_prefix": "a%"},
        {"tenant": "other"},
    ],
)
async def test_invalid_keys_are_refused(client: httpx.AsyncClient, admin: str, wrong: Json) -> None:
    body = {"name": "k", "scopes": ["read"]} | wrong
    answer = await client.post("/v1/keys", json=body, headers=bearer(admin))
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/invalid-request"), answer.text
    assert answer.json()["field"].split(".")[0] == next(iter(wrong))
    assert len(await list_keys(client, admin)) == 1


@pytest.mark.parametrize("scopes", [["ingest", "read", "audit"], ["read"]])
async def test_only_admins_manage_keys(client: httpx.AsyncClient, admin: str, scopes: list[str]) -> None:
    narrow = (await mint(client, admin, scopes=scopes))["secret"]
    for method, path in (("POST", "/v1/keys"), ("GET", "/v1/keys"), ("DELETE", f"/v1/keys/{uuid4()}")):
        answer = await client.request(method, path, json=ADMIN, headers=bearer(narrow))
        assert (answer.status_code, answer.json()["type"]) == (403, "/problems/forbidden"), method
    assert len(await list_keys(client, admin)) == 2


async def test_an_admin_manages_only_its_own_tenants_keys(
    client: httpx.AsyncClient, admin: str, database: Database
) -> None:
    theirs = (await Tenants(database, None).create_key("other", "theirs", ["admin"])).secret
    key = await mint(client, theirs, name="of the other")
    assert {row["name"] for row in await list_keys(client, theirs)} == {"theirs", "of the other"}
    assert {row["name"] for row in await list_keys(client, admin)} == {"admin"}
    refused = await client.delete(f"/v1/keys/{key['id']}", headers=bearer(admin))
    unknown = await client.delete(f"/v1/keys/{(other := uuid4())}", headers=bearer(admin))
    assert refused.status_code == unknown.status_code == 404
    assert refused.text.replace(key["id"], "-") == unknown.text.replace(str(other), "-")
    await client.put("/v1/sessions/s", json={}, headers=bearer(key["secret"]))
    assert (await client.get("/v1/sessions/s", headers=bearer(admin))).status_code == 404
    assert (await client.get("/v1/sessions/s", headers=bearer(theirs))).status_code == 200


async def test_the_first_key_closes_the_server_and_must_be_an_unlimited_admin(client: httpx.AsyncClient) -> None:
    later = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    assert (await client.get("/v1/sessions")).status_code == 200
    for wrong in ({"scopes": ["ingest", "read"]}, ADMIN | {"expires_at": later}, ADMIN | {"session_prefix": "a"}):
        answer = await client.post("/v1/keys", json={"name": "k"} | wrong)
        assert (answer.status_code, answer.json()["field"]) == (422, "scopes"), answer.text
        assert (await client.get("/v1/sessions")).status_code == 200
    secret = (await mint(client, None, **ADMIN))["secret"]
    assert (await client.get("/v1/sessions")).status_code == 401
    assert (await client.post("/v1/keys", json=ADMIN)).status_code == 401
    assert (await client.get("/v1/sessions", headers=bearer(secret))).status_code == 200
    await mint(client, secret, scopes=["read"])


async def test_a_foreign_page_cannot_create_the_first_key(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/keys", json=ADMIN, headers={"Host": "evil.example"})
    assert (answer.status_code, answer.json()["type"]) == (403, "/problems/not-local")
    assert (await client.get("/v1/sessions")).status_code == 200


async def test_the_bootstrap_key_creates_keys_of_any_kind(database_url: str) -> None:
    secret = "bootstrap-" + "k" * 20
    async with (
        serving(Settings(api_key=secret), database_url) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as http,
    ):
        key = await mint(http, secret, scopes=["read"], session_prefix="a:")
        assert (await http.get("/v1/sessions", headers=bearer(key["secret"]))).status_code == 200


async def test_no_key_creates_one_with_wider_access(client: httpx.AsyncClient, admin: str) -> None:
    until = datetime.now(UTC) + timedelta(days=3)
    bound = (await mint(client, admin, scopes=["admin"], session_prefix="a:", expires_at=until.isoformat()))["secret"]
    within: Json = {"session_prefix": "a:b:", "expires_at": (until - timedelta(hours=1)).isoformat()}
    for wrong in (
        {"session_prefix": None},
        {"session_prefix": "a"},
        {"session_prefix": "b:"},
        {"expires_at": None},
        {"expires_at": (until + timedelta(seconds=1)).isoformat()},
    ):
        body = {"name": "k", "scopes": ["read"]} | within | wrong
        answer = await client.post("/v1/keys", json=body, headers=bearer(bound))
        assert (answer.status_code, answer.json()["type"]) == (403, "/problems/forbidden"), wrong
    narrower = await mint(client, bound, scopes=["admin"], **within)
    await mint(client, bound, scopes=["admin"], session_prefix="a:", expires_at=until.isoformat())
    wide = await mint(client, admin, name="wide", session_prefix="b:")
    assert len(await list_keys(client, admin)) == 5
    assert {row["session_prefix"] for row in await list_keys(client, bound)} == {"a:", "a:b:"}
    assert {row["session_prefix"] for row in await list_keys(client, narrower["secret"])} == {"a:b:"}
    assert (await client.delete(f"/v1/keys/{wide['id']}", headers=bearer(bound))).status_code == 404
    assert (await client.delete(f"/v1/keys/{narrower['id']}", headers=bearer(bound))).status_code == 204


async def test_a_key_stops_the_moment_it_expires(client: httpx.AsyncClient, admin: str) -> None:
    """The key is refused although the server has cached it for longer."""
    until = datetime.now(UTC) + timedelta(seconds=1.5)
    key = await mint(client, admin, expires_at=until.isoformat())
    let_in = 0
    async with asyncio.timeout(SECONDS_MAX):
        while (answer := await client.get("/v1/sessions", headers=bearer(key["secret"]))).status_code == 200:
            let_in += 1
    stopped = datetime.now(UTC)
    unknown = await client.get("/v1/sessions", headers=bearer("pal_" + "x" * 43))
    assert (answer.status_code, answer.text) == (unknown.status_code, unknown.text)
    assert let_in > 0
    assert timedelta(0) <= stopped - until < timedelta(seconds=1)


class Times:
    """A manual clock and calendar."""

    def __init__(self) -> None:
        self.start = datetime(2026, 11, 22, tzinfo=UTC)
        self.seconds = 0.0

    def clock(self) -> float:
        return self.seconds

    def today(self) -> datetime:
        return self.start + timedelta(seconds=self.seconds)


@pytest.fixture
def times() -> Times:
    return Times()


@pytest.fixture
async def tenants(database: Database, times: Times) -> AsyncIterator[Tenants]:
    made = Tenants(database, None, times.clock, times.today)
    yield made
    await made.aclose()


async def test_a_cached_key_does_not_outlive_its_expiry(tenants: Tenants, times: Times) -> None:
    made = await tenants.create_key("default", "k", ["read"], expires_at=times.start + timedelta(seconds=1))
    times.seconds = 0.999
    assert await tenants.authenticate(made.secret) is not None
    times.seconds = 1.0
    assert await tenants.authenticate(made.secret) is None


async def used_at(database: Database, secret: str) -> datetime | None:
    row = await database.fetchrow("SELECT last_used_at FROM api_keys WHERE secret_sha256 = :hash", hash=digest(secret))
    assert row is not None
    found: datetime | None = row["last_used_at"]
    return found


async def test_the_use_of_a_key_is_recorded_once_a_minute(tenants: Tenants, times: Times, database: Database) -> None:
    key = await tenants.create_key("default", "k", ["read"])
    assert await used_at(database, key.secret) is None
    for seconds, written in (
        (0.0, 0.0),
        (EVERY_SECONDS / 2, 0.0),
        (EVERY_SECONDS - 0.1, 0.0),
        (EVERY_SECONDS, EVERY_SECONDS),
        (EVERY_SECONDS * 1.5, EVERY_SECONDS),
        (EVERY_SECONDS * 2, EVERY_SECONDS * 2),
    ):
        times.seconds = seconds
        assert await tenants.authenticate(key.secret) is not None
        await tenants.aclose()
        assert await used_at(database, key.secret) == times.start + timedelta(seconds=written)


async def test_an_older_use_does_not_undo_a_newer_one(tenants: Tenants, times: Times, database: Database) -> None:
    key = await tenants.create_key("default", "k", ["read"])
    other = Tenants(database, None, times.clock, lambda: times.start - timedelta(hours=1))
    await tenants.authenticate(key.secret)
    await tenants.aclose()
    await other.authenticate(key.secret)
    await other.aclose()
    assert await used_at(database, key.secret) == times.start


async def test_uses_of_several_tenants_keys_are_recorded(tenants: Tenants, times: Times, database: Database) -> None:
    made = [await tenants.create_key(tenant, "k", ["read"]) for tenant in ("a", "a", "b", "default")]
    await asyncio.gather(*(tenants.authenticate(key.secret) for key in made))
    await tenants.aclose()
    assert {await used_at(database, key.secret) for key in made} == {times.start}


async def test_the_list_has_the_time_of_last_use(client: httpx.AsyncClient, admin: str) -> None:
    before = datetime.now(UTC)
    async with asyncio.timeout(SECONDS_MAX):
        while (found := (await list_keys(client, admin))[0]["last_used_at"]) is None:
            pass
    assert before - timedelta(seconds=1) < datetime.fromisoformat(found) <= datetime.now(UTC)


async def test_requests_do_not_wait_for_the_use_to_be_recorded(
    client: httpx.AsyncClient, admin: str, database: Database
) -> None:
    key = await mint(client, admin)
    async with database.transaction() as tx:
        await tx.fetch("SELECT FROM api_keys FOR UPDATE")
        async with asyncio.timeout(5):
            for _ in range(3):
                assert (await client.get("/v1/sessions", headers=bearer(key["secret"]))).status_code == 200
        assert await used_at(database, key["secret"]) is None
    async with asyncio.timeout(SECONDS_MAX):
        while await used_at(database, key["secret"]) is None:
            pass


async def test_a_use_that_cannot_be_recorded_fails_no_request(database_url: str, database: Database) -> None:
    """The database refuses the statement that records the use."""
    key = await Tenants(database, None).create_key("default", "k", ["read"])
    await database.execute("ALTER TABLE api_keys ADD CONSTRAINT never_used CHECK (last_used_at IS NULL)")
    async with serving(Settings(), database_url) as url, httpx.AsyncClient(base_url=url) as http:
        for _ in range(3):
            assert (await http.get("/v1/sessions", headers=bearer(key.secret))).status_code == 200
    assert await used_at(database, key.secret) is None
    assert [row.last_used_at for row in await keys.all_keys(database)] == [None]
