"""Calls that the gateway passes through unchanged; its keys and limits, and upstream failures."""

import asyncio
import base64
import json
from urllib.parse import quote

import asyncpg
import httpx
import pytest
from sqlalchemy.engine import make_url

from app import tenants
from app.runtime.settings import Settings
from app.store.dsn import for_asyncpg
from app.store.engine import Database
from app.store.ids import session_key
from app.tenants import DEFAULT_TENANT, Tenants
from tests.conftest import serving
from tests.support.databases import tables_containing
from tests.support.gateways import KEY, NO_WAIT_POLICY, GatewayReader, settings
from tests.support.provider import Provider, ProviderReply

pytestmark = pytest.mark.wing("gateway")


async def test_the_gateway_is_off_without_an_upstream_url(client: httpx.AsyncClient, database_url: str) -> None:
    for path in ("/gateway/anthropic/v1/messages", "/gateway/openai/v1/models"):
        assert (await client.post(path, json={})).status_code == 404
    only = Settings(gateway_openai_url="http://127.0.0.1:9/v1")
    async with serving(only, database_url) as url, httpx.AsyncClient(base_url=url, verify=False) as other:
        assert (await other.post("/gateway/anthropic/v1/messages", json={})).status_code == 404
        answer = await other.post("/gateway/openai/v1/chat/completions", json={})
        assert (answer.status_code, answer.json()["type"]) == (502, "/problems/upstream-failed")
        assert answer.json()["error"]["message"] == answer.json()["detail"]


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "PATCH"])
async def test_every_other_path_passes_through_unchanged(
    http: httpx.AsyncClient, provider: Provider, method: str
) -> None:
    body = b"" if method == "GET" else b'{"any":  "bytes", \xff'
    headers = {
        "x-api-key": KEY,
        "anthropic-beta": "a,b",
        "x-palimpsest-key": "none",
        "connection": "x-hop",
        "x-hop": "1",
    }
    path = "/gateway/anthropic/v1/files/a%2Fb?beta=true&q=%20x"
    del headers["x-palimpsest-key"]
    answer = await http.request(method, path, content=body, headers=headers | {"accept-encoding": "br;q=0.5"})
    assert (answer.status_code, answer.content) == (207, body or b"nothing")
    [asked] = provider.requests
    assert (asked.method, asked.query, asked.raw) == (method, "beta=true&q=%20x", body)
    assert (asked.header("x-api-key"), asked.header("anthropic-beta")) == (KEY, "a,b")
    assert (asked.header("accept-encoding"), asked.header("x-hop")) == ("br;q=0.5", None)
    assert answer.headers["x-request-id"] == "r1"
    assert answer.headers.get_list("x-palimpsest-mode") == ["passthrough"]
    assert len(answer.headers.get_list("date")) == 1


async def test_a_call_without_a_session_passes_through_unchanged(http: httpx.AsyncClient, provider: Provider) -> None:
    raw = b'{ "model":"m", "prompt_cache_key": "k", "messages":[{"role":"user","content":"hi"}] }'
    provider.compress = True
    url = "/gateway/openai/v1/chat/completions"
    answer = await http.post(url, content=raw, headers={"accept-encoding": "gzip"})
    assert provider.requests[-1].raw == raw
    assert (answer.headers["x-palimpsest-mode"], answer.headers["x-palimpsest-reason"]) == ("passthrough", "no-session")
    assert answer.headers["content-encoding"] == "gzip"
    assert answer.json()["choices"][0]["message"]["content"] == "Hello."
    assert (await http.get("/v1/sessions")).json()["items"] == []


async def test_a_providers_refusal_is_returned_unchanged(http: httpx.AsyncClient, provider: Provider) -> None:
    error = {"error": {"message": f"Incorrect API key provided: {KEY}.", "code": "invalid_api_key"}}
    provider.script.append(ProviderReply(status=401, error=error))
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    headers = {"authorization": f"Bearer {KEY}"}
    answer = await http.post("/gateway/s/s/openai/v1/chat/completions", json=body, headers=headers)
    assert (answer.status_code, answer.json()) == (401, error)
    assert len(provider.calls()) == 1


async def test_an_infeasible_context_bypasses_with_the_clients_bytes(
    http: httpx.AsyncClient, provider: Provider
) -> None:
    await http.put("/v1/sessions/s", json={"policy": {"window_tokens": 2_000, "reserve_tokens": 100}})
    raw = json.dumps({"messages": [{"role": "user", "content": "word " * 5_000}], "model": "m", "max_tokens": 9})
    answer = await http.post("/gateway/s/s/anthropic/v1/messages", content=raw)
    assert answer.status_code == 200
    assert provider.requests[-1].raw == raw.encode()
    assert answer.headers["x-palimpsest-mode"] == "bypass"
    assert answer.headers["x-palimpsest-reason"] == "context-infeasible"


@pytest.mark.parametrize(
    ("raw", "reason"),
    [(b"not json", "unreadable"), (b'{"messages": 7, "model": "m"}', "no-messages"), (b'{"a":' * 200, "unreadable")],
)
async def test_unreadable_requests_are_left_to_the_provider(
    http: httpx.AsyncClient, provider: Provider, raw: bytes, reason: str
) -> None:
    answer = await http.post("/gateway/s/s/anthropic/v1/messages/", content=raw)  # another path, which passes through
    assert (answer.status_code, answer.content) == (207, raw)
    answer = await http.post("/gateway/s/s/openai/v1/chat/completions", content=raw)
    assert answer.headers["x-palimpsest-mode"] == "bypass"
    assert answer.headers["x-palimpsest-reason"] == reason
    assert provider.requests[-1].raw == raw


async def test_calls_bypass_while_the_database_is_away(
    database_url: str, postgres: str, provider: Provider, monkeypatch: pytest.MonkeyPatch, behind: GatewayReader
) -> None:
    """Callers with an accepted key are passed through; others are refused."""
    monkeypatch.setattr(tenants, "CACHE_SECONDS", 0.0)
    raw = b'{"model":"m", "messages":[{"role":"user","content":"hi"}]}'
    path = "/gateway/s/s/openai/v1/chat/completions"
    async with (
        serving(settings(provider), database_url) as url,
        httpx.AsyncClient(base_url=url, verify=False, timeout=30) as http,
    ):
        assert (await http.post(path, content=raw)).headers["x-palimpsest-mode"] == "context"
        await behind.logged(http, 2)
        operator = await asyncpg.connect(for_asyncpg(postgres))
        name = make_url(database_url).database
        await operator.execute(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS false")
        await operator.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", name)
        answer = await http.post(path, content=raw)
        stranger = await http.post(path, content=raw, headers={"x-palimpsest-key": "another-key"})
        await operator.close()
    assert (answer.status_code, provider.requests[-1].raw) == (200, raw)
    assert answer.headers["x-palimpsest-mode"] == "bypass"
    assert answer.headers["x-palimpsest-reason"] == "store-unavailable"
    assert (stranger.status_code, len(provider.requests)) == (503, 2)


async def test_calls_with_the_settings_key_pass_without_a_database_from_the_start(provider: Provider) -> None:
    nowhere = "postgresql+asyncpg://nobody@127.0.0.1:9/none"
    raw = b'{"model":"m", "messages":[{"role":"user","content":"hi"}]}'
    async with (
        serving(settings(provider, api_key="a-key-with-all-scopes"), nowhere) as url,
        httpx.AsyncClient(base_url=url, verify=False, timeout=30) as http,
    ):
        headers = {"x-palimpsest-key": "a-key-with-all-scopes"}
        answer = await http.post("/gateway/s/s/openai/v1/chat/completions", content=raw, headers=headers)
    assert answer.status_code == 200
    assert answer.headers["x-palimpsest-mode"] == "bypass"
    assert provider.requests[-1].raw == raw


async def test_palimpsests_key_authenticates_and_is_never_sent_upstream(
    database_url: str, provider: Provider, database: Database
) -> None:
    bound = (await Tenants(database, None).create_key("default", "k", ["ingest", "read"], session_prefix="a:")).secret
    reader = (await Tenants(database, None).create_key("default", "k", ["read"])).secret
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    path = "/gateway/openai/v1/chat/completions"
    async with (
        serving(settings(provider), database_url) as url,
        httpx.AsyncClient(base_url=url, verify=False) as http,
    ):

        async def status(key: str | None, **headers: str) -> int:
            keyed = {} if key is None else {"x-palimpsest-key": key}
            return (
                await http.post(path, json=body, headers={"authorization": f"Bearer {KEY}", **keyed, **headers})
            ).status_code

        assert await status(None) == 401
        assert await status(f"{bound}x") == 401
        assert await status(reader) == 403
        assert not provider.requests
        assert await status(bound) == 200
        assert await status(bound, **{"x-palimpsest-session": "b:1"}) == 404
        assert await status(bound, **{"x-palimpsest-session": "a:1"}) == 200
        assert await status(bound, **{"x-session-id": "oc"}) == 200
    sent = "".join(f"{one.headers}{one.raw!r}" for one in provider.requests)
    assert KEY in sent
    assert "pal_" not in sent and "x-palimpsest" not in sent
    names = {row["external_id"] for row in await database.fetch("SELECT external_id FROM sessions")}
    assert {"a:1", "a:oc"} <= {name.partition("@line")[0] for name in names}


@pytest.mark.wing("telemetry")
@pytest.mark.wing("audit")
async def test_a_providers_key_is_stored_nowhere(
    http: httpx.AsyncClient,
    provider: Provider,
    database: Database,
    capsys: pytest.CaptureFixture[str],
    behind: GatewayReader,
) -> None:
    """The key is in no table, log line or metric, even if the provider repeats it."""
    said = f"You sent {KEY}, and it is too long: prompt is too long: 9000 tokens > 8000 maximum"
    error = {"type": "error", "error": {"type": "invalid_request_error", "message": said}}
    scripts = [
        ProviderReply(),
        ProviderReply(status=400, error=error),
        ProviderReply(cut=2),
        ProviderReply(status=401, error=error),
        ProviderReply(status=500, error=error),
    ]
    body = {"model": "m", "max_tokens": 9, "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    headers = {"x-api-key": KEY, "authorization": f"Bearer {KEY}", "x-palimpsest-session": "s"}
    await http.put("/v1/sessions/s", json={"policy": NO_WAIT_POLICY})
    for one in scripts:
        provider.script.append(one)
        try:
            await http.post(f"/gateway/anthropic/v1/messages?key={KEY}", json=body, headers=headers)
        except httpx.RemoteProtocolError:
            assert one.cut
        provider.script.clear()
    for call in (await http.get("/v1/sessions/s/calls")).json()["items"]:
        await behind.reported(http, call["call_id"])
    assert await tables_containing(database, "hi")
    assert not await tables_containing(database, KEY)
    output = capsys.readouterr()
    metrics = (await http.get("/metrics")).text
    assert KEY not in output.out + output.err + metrics
    assert "palimpsest_gateway_calls" in metrics


CUSTOM = "cust-9f8e7d6c5b4a39281706"
QUOTES = {
    "as it is": CUSTOM,
    "base64": base64.b64encode(CUSTOM.encode()).decode(),
    "Basic": base64.b64encode(f"user:{CUSTOM}".encode()).decode(),
    "URL": quote(CUSTOM, safe="").replace("-", "%2D"),
    "escaped twice": json.dumps(json.dumps({"authorization": CUSTOM}).replace("-", "\\u002d")),
    "shortened": f"{CUSTOM[:14]}...",
}
NAMES = [
    *("authorization", "proxy-authorization", "x-api-key", "api-key", "x-goog-api-key", "cookie", "x-litellm-key"),
    *("ocp-apim-subscription-key", "x-session-token", "x-client-secret-id", "x-auth", "cf-access-client-secret"),
]
OF_EACH_FORM = ["authorization", "cookie", "x-auth"]
"""A scheme before the key, a key among other values, and a header that is nothing but the key."""


@pytest.mark.wing("audit")
@pytest.mark.parametrize("written", sorted(QUOTES))
@pytest.mark.parametrize("whole", [True, False], ids=["whole", "broken JSON"])
async def test_a_key_in_any_header_that_a_provider_repeats_is_stored_nowhere(
    http: httpx.AsyncClient,
    provider: Provider,
    database: Database,
    capsys: pytest.CaptureFixture[str],
    behind: GatewayReader,
    written: str,
    whole: bool,
) -> None:
    quoted = QUOTES[written]
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    text = json.dumps({"error": {"message": f"not with {quoted}", "code": f"bad {quoted}"}})
    for name in NAMES if written == "as it is" else OF_EACH_FORM:
        value = {"cookie": f"a=1; k={CUSTOM}", "authorization": f"Bearer {CUSTOM}"}.get(name, CUSTOM)
        raw = text if whole else text[:-3]
        provider.script.append(
            ProviderReply(status=400, raw=raw.encode(), headers={"content-type": "application/json"})
        )
        headers = {name: value, "x-palimpsest-session": "s"}
        answer = await http.post("/gateway/anthropic/v1/messages", json=body, headers=headers)
        assert (answer.status_code, answer.text) == (400, raw)
        record = await behind.reported(http, answer.headers["x-palimpsest-call"], answer.headers["x-palimpsest-line"])
        assert "[key]" in record["outcome"]["error"]["message"], name
    output = capsys.readouterr()
    for part in {quoted[:12], quoted[-12:], CUSTOM[:12]}:
        assert part not in output.out + output.err
        assert not await tables_containing(database, part)


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/gateway/anthropic/v1/messages", {}, 502),
        ("/gateway/anthropic/v1/messages", {"x-palimpsest-key": KEY}, 401),
        ("/gateway/anthropic/v1/messages", {"x-palimpsest-session": "two words"}, 422),
        ("/gateway/openai/v1/chat/completions", {}, 404),
        ("/gateway/s/s/nobody/v1/messages", {}, 404),
    ],
)
async def test_a_providers_key_is_in_no_problem_response(
    database_url: str,
    database: Database,
    capsys: pytest.CaptureFixture[str],
    path: str,
    headers: dict[str, str],
    status: int,
) -> None:
    ours = "a-key-with-all-scopes"
    given = {"x-api-key": KEY, "authorization": f"Bearer {KEY}", "x-palimpsest-session": "s", "x-palimpsest-key": ours}
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    nowhere = Settings(gateway_anthropic_url="http://127.0.0.1:9", api_key=ours)
    async with serving(nowhere, database_url) as url, httpx.AsyncClient(base_url=url, verify=False, timeout=30) as http:
        answer = await http.post(f"{path}?key={KEY}", json=body, headers=given | headers)
        metrics = (await http.get("/metrics", headers={"authorization": f"Bearer {ours}"})).text
    assert (answer.status_code, answer.json()["status"]) == (status, status)
    output = capsys.readouterr()
    assert KEY not in f"{answer.headers}{answer.text}{metrics}{output.out}{output.err}"
    assert not await tables_containing(database, KEY)


async def test_concurrent_requests_are_limited(database_url: str, provider: Provider) -> None:
    provider.script.append(ProviderReply(cut=2, hold=asyncio.Event()))
    body = {"model": "m", "max_tokens": 9, "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    url = "/gateway/anthropic/v1/messages"
    async with (
        serving(settings(provider, gateway_requests_max=1), database_url) as base,
        httpx.AsyncClient(base_url=base, verify=False) as http,
    ):
        async with http.stream("POST", url, json=body):
            answer = await http.post(url, json=body)
            assert (answer.status_code, answer.json()["error"]["type"]) == (503, "overloaded")
            assert answer.headers["retry-after"] == "1"
        await asyncio.wait_for(provider.dropped.wait(), 5)
        assert (await http.post(url, json=body)).status_code == 200


@pytest.mark.parametrize(
    "path", ["/gateway/s/two%20words/openai/v1/chat/completions", "/gateway/s//openai/v1/responses"]
)
async def test_an_invalid_session_id_is_an_error(http: httpx.AsyncClient, provider: Provider, path: str) -> None:
    answer = await http.post(path, json={"model": "m", "messages": [{"role": "user", "content": "hi"}]})
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/invalid-request")
    assert not provider.requests


@pytest.mark.wing("audit")
async def test_a_slow_context_bypasses_with_the_clients_bytes(
    database_url: str, database: Database, provider: Provider, behind: GatewayReader
) -> None:
    """A transaction holds the lock on the session's row."""
    raw = b'{"model":"m", "messages":[{"role":"user","content":"hi"}]}'
    async with (
        serving(settings(provider, gateway_context_seconds=0.2), database_url) as url,
        httpx.AsyncClient(base_url=url, verify=False, timeout=30) as http,
    ):
        await http.put("/v1/sessions/s", json={"model": "m"})
        async with database.transaction() as tx:
            await tx.execute(
                "SELECT 1 FROM sessions WHERE session_id = :id FOR UPDATE", id=session_key(DEFAULT_TENANT, "s")
            )
            answer = await http.post("/gateway/s/s/openai/v1/chat/completions", content=raw)
            assert answer.headers["x-palimpsest-reason"] == "too-slow"
            assert (answer.status_code, provider.requests[-1].raw) == (200, raw)
        [call] = await behind.called(http)
        assert "too late" in (await behind.reported(http, call["call_id"]))["outcome"]["error"]["message"]
        answer = await http.post("/gateway/s/s/openai/v1/chat/completions", content=raw)
        assert answer.headers["x-palimpsest-mode"] == "context"
        assert [one["type"] for one in await behind.logged(http, 2)] == ["user.message", "assistant.message"]


async def test_an_increment_of_an_unknown_reply_passes_through(
    gateway: str, http: httpx.AsyncClient, provider: Provider
) -> None:
    raw = b'{"model":"m", "previous_response_id":"resp_of_before", "input":"Go on."}'
    answer = await http.post("/gateway/s/s/openai/v1/responses", content=raw)
    assert (answer.status_code, provider.requests[-1].raw) == (200, raw)
    assert answer.headers["x-palimpsest-mode"] == "bypass"
    assert answer.headers["x-palimpsest-reason"] == "conversation-at-provider"


@pytest.mark.wing("audit")
async def test_a_provider_that_is_silent_for_too_long_is_504(
    database_url: str, provider: Provider, behind: GatewayReader
) -> None:
    reply_now = asyncio.Event()
    provider.script.append(ProviderReply(delay_until=reply_now))
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    async with (
        serving(settings(provider, gateway_silence_seconds=0.2), database_url) as url,
        httpx.AsyncClient(base_url=url, verify=False, timeout=30) as http,
    ):
        answer = await http.post("/gateway/s/s/openai/v1/chat/completions", json=body)
        reply_now.set()
        assert (answer.status_code, answer.json()["error"]["type"]) == (504, "upstream-late")
        [call] = (await http.get("/v1/sessions/s/calls")).json()["items"]
        assert "ReadTimeout" in (await behind.reported(http, call["call_id"]))["outcome"]["error"]["message"]
