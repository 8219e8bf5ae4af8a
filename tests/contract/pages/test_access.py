"""Access to the pages: by the API's keys, through a login, and never from another site's form."""

from urllib.parse import quote

import httpx
import pytest

from app.runtime.settings import Settings
from app.store.engine import Database
from app.tenants import Tenants
from app.wings.pages import access
from app.wings.pages.access import COOKIE, Logins, safe_target
from tests.conftest import serving

HTML = {"Accept": "text/html"}
SAME_SITE = {"Sec-Fetch-Site": "same-origin"}


async def log_in(client: httpx.AsyncClient, key: str, target: str = "/ui/") -> httpx.Response:
    """Send the form of the login page."""
    return await client.post("/ui/login", data={"key": key, "next": target}, headers=SAME_SITE)


async def new_key(database: Database, *scopes: str, tenant: str = "default", prefix: str | None = None) -> str:
    """Create a key; return its secret."""
    return (await Tenants(database, None).create_key(tenant, "k", scopes, session_prefix=prefix)).secret


async def test_a_browser_is_led_to_the_pages_and_a_client_is_not(client: httpx.AsyncClient) -> None:
    led = await client.get("/", headers=HTML)
    assert (led.status_code, led.headers["location"]) == (307, "/ui/")
    other = await client.get("/", headers={"Accept": "application/json"})
    assert (other.status_code, other.json()["type"]) == (404, "/problems/not-found")


async def test_without_keys_the_pages_are_open_and_restricted_by_their_headers(client: httpx.AsyncClient) -> None:
    await client.post("/v1/sessions/demo/events", json={"events": [{"type": "user.message", "content": "hi"}]})
    page = await client.get("/ui/")
    assert page.status_code == 200 and "/ui/sessions/demo" in page.text
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'self';") and "unsafe" not in policy
    assert page.headers["x-content-type-options"] == "nosniff"


@pytest.mark.usefixtures("database_url")
async def test_without_keys_other_hosts_are_refused_as_on_the_api(client: httpx.AsyncClient) -> None:
    page = await client.get("/ui/", headers={"Host": "evil.example"})
    assert page.status_code == 403


async def test_with_keys_a_reader_logs_in_and_out(client: httpx.AsyncClient, database: Database) -> None:
    key = await new_key(database, "read")
    target = "/ui/?cursor=x"
    led = await client.get(target)
    assert (led.status_code, led.headers["location"]) == (303, f"/ui/login?next={quote(target)}")
    assert 'type="password"' in (await client.get(led.headers["location"])).text
    entered = await log_in(client, key, "/ui/")
    assert (entered.status_code, entered.headers["location"]) == (303, "/ui/")
    cookie = entered.headers["set-cookie"]
    assert all(part in cookie for part in ("HttpOnly", "Path=/ui/", "SameSite=lax")) and key not in cookie
    assert (await client.get("/ui/")).status_code == 200
    assert (await client.get("/v1/sessions")).status_code == 401, "the API takes no cookie"
    assert (await client.post("/ui/logout", headers=SAME_SITE)).headers["location"] == "/ui/login"
    assert (await client.get("/ui/")).status_code == 303


async def test_a_revoked_key_ends_its_login(
    client: httpx.AsyncClient, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.tenants.CACHE_SECONDS", 0)
    await new_key(database, "admin")
    made = await Tenants(database, None).create_key("default", "k", ["read"])
    await log_in(client, made.secret)
    assert (await client.get("/ui/")).status_code == 200
    await database.execute("UPDATE api_keys SET revoked_at = now() WHERE key_id = :id", id=made.key_id)
    assert (await client.get("/ui/")).status_code == 303


@pytest.mark.parametrize(("scope", "status"), [("ingest", 403), (None, 401)])
async def test_a_login_needs_a_key_that_may_read(
    client: httpx.AsyncClient, database: Database, scope: str | None, status: int
) -> None:
    await new_key(database, "admin")
    refused = await log_in(client, "pk_wrong" if scope is None else await new_key(database, scope))
    assert refused.status_code == status and "set-cookie" not in refused.headers
    assert 'role="alert"' in refused.text


async def test_cookies_are_not_believed_when_forged_altered_or_old(
    client: httpx.AsyncClient, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = await new_key(database, "read")
    await log_in(client, key)
    sealed = client.cookies[COOKIE]
    for forged in (Logins("another secret").seal(key), sealed[:-4] + "AAA=", key, "ä", ""):
        client.cookies.clear()
        page = await client.get("/ui/", headers={"Cookie": f"{COOKIE}={quote(forged)}"})
        assert page.status_code == 303, forged
    logins = Logins("s")
    assert Logins("s").unseal(logins.seal(key)) == key, "another server with the same secret"
    monkeypatch.setattr(access, "LOGIN_SECONDS", -1)
    assert logins.unseal(logins.seal(key)) is None


async def test_forms_of_other_sites_do_nothing(client: httpx.AsyncClient, database: Database) -> None:
    key = await new_key(database, "read")
    for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"}, {"Origin": "null"}, {}):
        refused = await client.post("/ui/login", data={"key": key}, headers=headers)
        assert refused.status_code == 403 and "set-cookie" not in refused.headers
    host = client.base_url.netloc.decode()
    assert (await client.post("/ui/login", data={"key": key}, headers={"Origin": f"http://{host}"})).status_code == 303


async def test_tenants_and_prefixes_see_their_own_sessions(client: httpx.AsyncClient, database: Database) -> None:
    ours, theirs = await new_key(database, "admin"), await new_key(database, "admin", tenant="other")
    bound = await new_key(database, "read", prefix="a:")
    event = {"events": [{"type": "user.message", "content": "hi"}]}
    for session in ("a:1", "b:1"):
        await client.post(f"/v1/sessions/{session}/events", json=event, headers={"Authorization": f"Bearer {ours}"})
    seen = {}
    for key in (ours, theirs, bound):
        page = await client.get("/ui/", headers={"Authorization": f"Bearer {key}"})
        seen[key] = [name for name in ("a:1", "b:1") if f"/ui/sessions/{name}" in page.text]
    assert seen == {ours: ["a:1", "b:1"], theirs: [], bound: ["a:1"]}


@pytest.mark.parametrize(
    "target", [None, "", "/v1/sessions", "/ui/\\evil", "//evil.example/ui/", "https://evil.example"]
)
def test_a_login_leads_to_pages_only(target: str | None) -> None:
    assert safe_target(target) == "/ui/"


async def test_static_files_are_compressed_and_kept(client: httpx.AsyncClient) -> None:
    file = await client.get("/ui/static/pages.css")
    assert file.headers["content-encoding"] == "gzip" and "immutable" in file.headers["cache-control"]
    assert (await client.get("/ui/static/../pages.css")).status_code == 404
    assert (await client.get("/ui/static/none.css")).status_code == 404


async def test_an_unknown_page_is_a_page_that_says_so(client: httpx.AsyncClient) -> None:
    page = await client.get("/ui/none/<b>")
    assert page.status_code == 404 and "There is no page /ui/none/&lt;b&gt;" in page.text
    assert "content-security-policy" in page.headers


async def test_the_pages_can_be_switched_off(database_url: str) -> None:
    async with serving(Settings(pages=False), database_url) as url, httpx.AsyncClient(base_url=url) as client:
        for path in ("/", "/ui/", "/ui/login", "/ui/static/pages.css"):
            assert (await client.get(path, headers=HTML)).status_code == 404, path
