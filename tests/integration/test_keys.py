"""Keys: authentication, tenants, scopes and lifetimes."""

import asyncio
from dataclasses import dataclass
from uuid import UUID, uuid4

import asyncpg
import httpx
import pytest

from app.core.errors import InvalidRequest
from app.main import create_app
from app.runtime.settings import Settings
from app.store import keys
from app.store.engine import Database
from app.store.keys import KeyRequest
from app.tenants import CACHE_SECONDS, DEFAULT_TENANT, SCOPES, Caller, Tenants, digest
from tests.conftest import serving

OPEN_TO_ALL = {"/healthz", "/readyz", "/metrics"}
EVENTS = {"events": [{"type": "user.message", "content": "hello"}]}


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


async def count(database: Database, table: str) -> int:
    row = await database.fetchrow(f"SELECT count(*) AS n FROM {table}")
    assert row is not None
    return int(row["n"])


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def tenants(database: Database, clock: Clock) -> Tenants:
    return Tenants(database, None, clock)


async def test_without_any_key_everyone_is_the_default_tenant(tenants: Tenants) -> None:
    assert await tenants.needs_key() is False
    assert await tenants.authenticate(None) == Caller(DEFAULT_TENANT, frozenset(SCOPES))
    assert await tenants.authenticate("pal_made-up") is None


async def test_a_key_opens_its_tenant_with_its_scopes(tenants: Tenants, database: Database) -> None:
    made = await tenants.create_key("acme", "laptop", ["ingest", "read"])
    caller = await tenants.authenticate(made.secret)
    row = await database.fetchrow("SELECT tenant_id FROM tenants WHERE name = 'acme'")
    assert row is not None
    assert caller == Caller(row["tenant_id"], frozenset({"ingest", "read"}))
    assert caller.tenant_id != DEFAULT_TENANT
    assert [caller.has_scope(scope) for scope in SCOPES] == [True, True, False, False]
    assert await tenants.authenticate(made.secret + "x") is None
    assert await tenants.authenticate("") is None


async def test_admin_may_everything(tenants: Tenants) -> None:
    made = await tenants.create_key("default", "root", ["admin"])
    caller = await tenants.authenticate(made.secret)
    assert caller is not None
    assert caller.tenant_id == DEFAULT_TENANT
    assert all(caller.has_scope(scope) for scope in SCOPES)


async def test_keys_are_random_and_stored_as_hashes_only(tenants: Tenants, database: Database) -> None:
    made = [await tenants.create_key("default", "k", ["read"]) for _ in range(3)]
    assert len({key.secret for key in made}) == 3
    assert all(key.secret.startswith("pal_") and len(key.secret) == 4 + 43 for key in made)
    stored = " ".join(row["text"] for row in await database.fetch("SELECT k::text AS text FROM api_keys k"))
    for key in made:
        assert str(key.key_id) in stored
        assert key.secret not in stored
        assert key.secret.encode().hex() not in stored


@pytest.mark.parametrize("scopes", [[], ["read", "write"], ["READ"]])
async def test_unknown_scopes_make_no_key(tenants: Tenants, database: Database, scopes: list[str]) -> None:
    with pytest.raises(InvalidRequest):
        await tenants.create_key("acme", "laptop", scopes)
    assert await count(database, "api_keys") == 0
    assert await count(database, "tenants") == 1


async def test_the_first_key_closes_the_server(tenants: Tenants, clock: Clock) -> None:
    assert await tenants.authenticate(None) is not None
    await tenants.create_key("default", "first", ["read"])
    clock.now += CACHE_SECONDS
    assert await tenants.authenticate(None) is None


async def test_a_key_of_another_process_can_make_bound_keys_immediately(database: Database, tenants: Tenants) -> None:
    """This process has just found that there is no key, and must not take the next one for the first."""
    assert await tenants.authenticate(None) is not None
    first = await Tenants(database, None).create_key("default", "operator", SCOPES)
    who = await tenants.authenticate(first.secret)
    assert who is not None
    row, _ = await tenants.make_key(who, KeyRequest("user 42", ["read"], None, "user-42:"))
    assert row.session_prefix == "user-42:"
    assert await tenants.authenticate(None) is None


async def test_a_revoked_key_stops_in_time_and_leaves_the_server_closed(
    tenants: Tenants, database: Database, clock: Clock
) -> None:
    made = await tenants.create_key("default", "only", ["admin"])
    assert await tenants.authenticate(made.secret) is not None
    assert await keys.revoke_any(database, made.key_id) is True
    clock.now += CACHE_SECONDS
    assert await tenants.authenticate(made.secret) is None
    assert await tenants.authenticate(None) is None
    assert await tenants.needs_key() is True


async def test_answers_are_believed_for_a_while_only(database: Database, tenants: Tenants, clock: Clock) -> None:
    """A request costs no query while the cached result is fresh."""
    made = await tenants.create_key("default", "k", ["read"])
    assert await tenants.authenticate(made.secret) is not None
    await keys.revoke_any(database, made.key_id)
    clock.now += CACHE_SECONDS * 0.99
    assert await tenants.authenticate(made.secret) is not None
    clock.now += CACHE_SECONDS * 0.01
    assert await tenants.authenticate(made.secret) is None
    assert CACHE_SECONDS <= 2.0


async def test_a_key_tried_too_early_works_later(database: Database, tenants: Tenants, clock: Clock) -> None:
    secret = "pal_" + "k" * 43
    assert await tenants.authenticate(secret) is None
    await keys.create(database, "acme", KeyRequest("k", ["read"]), digest(secret))
    clock.now += CACHE_SECONDS
    assert await tenants.authenticate(secret) is not None


async def test_revoking_twice_or_an_unknown_key_says_so(tenants: Tenants, database: Database) -> None:
    made = await tenants.create_key("default", "k", ["read"])
    assert await keys.revoke_any(database, made.key_id) is True
    assert await keys.revoke_any(database, made.key_id) is False
    assert await keys.revoke_any(database, uuid4()) is False


async def test_the_list_shows_everything_but_secrets(tenants: Tenants, database: Database) -> None:
    first = await tenants.create_key("acme", "laptop", ["read"])
    second = await tenants.create_key("default", "ci", ["ingest", "read"])
    await keys.revoke_any(database, first.key_id)
    rows = await keys.all_keys(database)
    assert [(row.id, row.tenant, row.name, row.scopes, row.revoked_at is None) for row in rows] == [
        (first.key_id, "acme", "laptop", ("read",), False),
        (second.key_id, "default", "ci", ("ingest", "read"), True),
    ]


async def test_keys_made_at_once_share_one_new_tenant(tenants: Tenants, database: Database) -> None:
    made = await asyncio.gather(*(tenants.create_key("acme", f"k{n}", ["read"]) for n in range(8)))
    callers = [await tenants.authenticate(key.secret) for key in made]
    assert len({caller.tenant_id for caller in callers if caller is not None}) == 1
    assert None not in callers
    assert await count(database, "tenants") == 2


async def test_the_database_keeps_one_row_a_secret(tenants: Tenants, database: Database) -> None:
    await keys.create(database, "acme", KeyRequest("k", ["read"]), b"\x01" * 32)
    with pytest.raises(asyncpg.UniqueViolationError):
        await keys.create(database, "other", KeyRequest("k", ["read"]), b"\x01" * 32)
    assert await count(database, "tenants") == 2


async def test_over_http_a_key_is_needed_once_there_is_one(client: httpx.AsyncClient, tenants: Tenants) -> None:
    made = await tenants.create_key("default", "k", ["ingest", "read"])
    assert (await client.get("/v1/sessions", headers=bearer(made.secret))).status_code == 200
    lower = {"authorization": f"bearer {made.secret}"}
    assert (await client.get("/v1/sessions", headers=lower)).status_code == 200
    for headers in (
        {},
        bearer("pal_" + "x" * 43),
        {"Authorization": "Bearer"},
        {"Authorization": f"Basic {made.secret}"},
    ):
        answer = await client.get("/v1/sessions", headers=headers)
        assert (answer.status_code, answer.json()["type"]) == (401, "/problems/unauthorized")
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.headers["www-authenticate"] == "Bearer"
        assert made.secret not in answer.text


async def test_over_http_a_scope_is_needed(client: httpx.AsyncClient, tenants: Tenants, database: Database) -> None:
    reader = await tenants.create_key("default", "reader", ["read"])
    writer = await tenants.create_key("default", "writer", ["ingest"])
    refused = await client.post("/v1/sessions/s/events", json=EVENTS, headers=bearer(reader.secret))
    assert (refused.status_code, refused.json()["type"]) == (403, "/problems/forbidden")
    assert "'ingest'" in refused.json()["detail"]
    assert await count(database, "sessions") == 0
    assert (await client.post("/v1/sessions/s/events", json=EVENTS, headers=bearer(writer.secret))).status_code == 201
    assert (await client.get("/v1/sessions/s", headers=bearer(writer.secret))).status_code == 403
    assert (await client.get("/v1/sessions/s", headers=bearer(reader.secret))).status_code == 200


async def test_tenants_do_not_see_each_other(client: httpx.AsyncClient, tenants: Tenants) -> None:
    ours = bearer((await tenants.create_key("acme", "k", ["admin"])).secret)
    theirs = bearer((await tenants.create_key("other", "k", ["admin"])).secret)
    assert (await client.post("/v1/sessions/s/events", json=EVENTS, headers=ours)).status_code == 201
    for path in ("", "/events", "/context", "/epochs"):
        assert (await client.get(f"/v1/sessions/s{path}", headers=theirs)).status_code == 404, path
    assert (await client.delete("/v1/sessions/s", headers=theirs)).status_code == 404
    assert (await client.get("/v1/sessions", headers=theirs)).json()["items"] == []
    assert (await client.post("/v1/sessions/s/events", json=EVENTS, headers=theirs)).json()["head"] == 1
    assert (await client.get("/v1/sessions/s", headers=ours)).json()["head"] == 1


async def test_the_bootstrap_key_is_valid_along_with_stored_ones(database_url: str, database: Database) -> None:
    secret = "bootstrap-" + "k" * 20
    made = await Tenants(database, None).create_key("acme", "k", ["read"])
    async with (
        serving(Settings(api_key=secret), database_url) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        assert (await client.get("/v1/sessions")).status_code == 401
        assert (await client.post("/v1/sessions/s/events", json=EVENTS, headers=bearer(secret))).status_code == 201
        assert (await client.get("/v1/sessions/s", headers=bearer(made.secret))).status_code == 404


async def test_the_bootstrap_key_alone_closes_the_server(database: Database) -> None:
    tenants = Tenants(database, "bootstrap-" + "k" * 20)
    assert await tenants.needs_key() is True
    assert await tenants.authenticate(None) is None
    assert await tenants.authenticate("bootstrap-" + "k" * 20) == Caller(DEFAULT_TENANT, frozenset(SCOPES))


IDS = ("call_id", "summary_id", "compaction_id", "delivery_id", "key_id", "kind", "other_id", "erasure_id")


async def test_every_route_but_the_operators_own_needs_a_key(
    client: httpx.AsyncClient, tenants: Tenants, database_url: str
) -> None:
    """A new route without authentication fails this test."""
    await tenants.create_key("default", "k", ["read"])
    paths = create_app(Settings(), database_url).openapi()["paths"]
    assert len(paths) > len(OPEN_TO_ALL)
    for path, operations in paths.items():
        for method in operations:
            answer = await client.request(
                method, path.format(sid="s", name="n", seq=1, index=0, **dict.fromkeys(IDS, UUID(int=0)))
            )
            assert (answer.status_code == 200) == (path in OPEN_TO_ALL), f"{method} {path}: {answer.status_code}"
            assert path in OPEN_TO_ALL or answer.status_code == 401, f"{method} {path}: {answer.status_code}"
