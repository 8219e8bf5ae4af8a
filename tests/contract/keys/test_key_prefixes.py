"""Keys bound to a session prefix: they find and change their own sessions, as if there were no others."""

import json
from collections.abc import AsyncIterator
from functools import cache
from typing import Any
from uuid import UUID

import httpx
import pytest
from fastapi.routing import APIRoute
from starlette.routing import Route

from app.http.auth import PrefixAccess
from app.http.operation import OperationRoute, Resource
from app.main import create_app
from app.runtime.settings import Settings
from app.store.engine import Database
from app.tenants import Tenants
from tests.contract.recall.test_mcp import session as mcp_session
from tests.contract.recall.test_mcp import text
from tests.support.openapi import document

Json = dict[str, Any]
EVENTS = {"events": [{"type": "user.message", "content": "the port is 8123"}]}
NOBODY = str(UUID(int=0))
OURS, THEIRS, NONE = "a:1", "b:1", "b:none"
OPEN = {"healthz", "readyz", "metrics"}
BODIES: dict[str, Json] = {
    "append_events": EVENTS,
    "append_messages": {"format": "openai", "messages": [{"role": "user", "content": "hi"}]},
    "put_session": {"metadata": {"mine": True}},
    "post_context": {},
    "preview_context": {},
    "fork_session": {"id": "a:fork"},
    "rewind_session": {"to": 0},
    "recall": {"query": "port"},
    "end_turn": {},
    "compact": {},
    "report_outcome": {"usage": {"input_tokens": 5}},
    "report_warming": {"usage": {"input_tokens": 5}},
    "warm_context": {},
    "put_layer": {"content": "x"},
    "patch_visibility": {"hide": [1]},
    "put_policy": {},
    "put_retention": {},
    "create_erasure": {"metadata": {"user": "ann"}},
    "preview_erasure": {"metadata": {"user": "ann"}},
    "put_webhook": {"url": "http://127.0.0.1:9/", "events": ["compaction.finished"]},
}
CREATES_SESSION = {"append_events", "append_messages", "put_session"}
"""The operations that create a session when its id is unknown."""


@cache
def operations() -> dict[str, tuple[str, str]]:
    """Return the methods and paths of the document's operations, by name."""
    found: dict[str, tuple[str, str]] = {}
    for path, methods in json.loads(document())["paths"].items():
        for method, operation in methods.items():
            found[operation["operationId"]] = (method.upper(), path)
    return found


@cache
def accesses() -> dict[str, PrefixAccess]:
    """Return the access of each declared operation, by name."""
    routes = create_app(Settings(), "postgresql://nobody@127.0.0.1:9/none").router.routes
    return {one.operation.name: one.operation.access for one in routes if isinstance(one, OperationRoute)}


def operations_with(access: PrefixAccess) -> list[str]:
    return sorted(name for name, one in accesses().items() if one is access)


def test_every_operation_of_the_document_declares_its_access() -> None:
    found = operations()
    assert set(accesses()) == set(found) - OPEN
    paths = json.loads(document())["paths"]
    for name, access in accesses().items():
        method, path = found[name]
        documented = set(paths[path][method.lower()]["responses"])
        assert {"403", "429"} <= documented, name
        assert access is not PrefixAccess.SESSION or "404" in documented, name


def test_an_operation_on_a_session_cannot_be_declared_as_one_on_all_and_vice_versa() -> None:
    for path, access in (("/v1/sessions/{sid}/x", PrefixAccess.TENANT), ("/v1/x", PrefixAccess.SESSION)):
        with pytest.raises(ValueError, match="cannot have the access"):
            Resource("x").operation("GET", path, scope="read", access=access)


def test_every_route_outside_the_document_is_known() -> None:
    """A new one must check the prefix of keys itself, as `/mcp`, the gateway and the pages do.

    Their own tests show it: test_mcp, test_gateway, and those of tests/contract/pages.
    """
    routes = create_app(Settings(), "postgresql://nobody@127.0.0.1:9/none").router.routes
    plain = {route.path: route for route in routes if isinstance(route, Route) and not isinstance(route, APIRoute)}
    assert all(isinstance(route, Route) for route in routes)
    own = {path for path in plain if not path.startswith("/ui")} - {"/", "/openapi.json"}
    assert own <= {"/mcp", "/mcp/s/{sid}"}
    for path in own:
        assert plain[path].endpoint.operation.access is PrefixAccess.WITHIN


@pytest.mark.wing("gateway")
def test_the_gateway_adds_one_route() -> None:
    off, on = (
        create_app(settings, "postgresql://nobody@127.0.0.1:9/none").router.routes
        for settings in (Settings(), Settings(gateway_openai_url="http://127.0.0.1:9/v1"))
    )
    assert len(on) == len(off) + 1


@pytest.fixture
async def keys(database: Database) -> dict[str, str]:
    """A key for all sessions of a tenant, one bound to `a:`, and one of another tenant."""
    tenants = Tenants(database, None)
    return {
        "all": (await tenants.create_key("default", "all", ["admin"])).secret,
        "bound": (await tenants.create_key("default", "bound", ["admin"], session_prefix="a:")).secret,
        "foreign": (await tenants.create_key("other", "foreign", ["admin"])).secret,
    }


class Caller:
    """A client with one key."""

    def __init__(self, http: httpx.AsyncClient, secret: str) -> None:
        self._http = http
        self._headers = {"Authorization": f"Bearer {secret}"}

    async def __call__(self, method: str, path: str, **more: Any) -> httpx.Response:
        return await self._http.request(method, path, headers=self._headers, **more)

    async def operation(self, name: str, sid: str) -> httpx.Response:
        """Call an operation on a session."""
        method, path = operations()[name]
        named = ("call_id", "other_id", "summary_id", "compaction_id", "delivery_id", "key_id", "erasure_id")
        ids = dict.fromkeys(named, NOBODY)
        place = path.format(sid=sid, seq=1, index=0, kind="sources", name="n", **ids)
        body = {"json": BODIES[name]} if name in BODIES else {}
        return await self(method, place, **body)

    async def items(self, path: str, **params: Any) -> list[Json]:
        answer = await self("GET", path, params=params)
        assert answer.status_code == 200, answer.text
        found: list[Json] = answer.json()["items"]
        return found


@pytest.fixture
async def callers(client: httpx.AsyncClient, keys: dict[str, str]) -> AsyncIterator[dict[str, Caller]]:
    """Callers with the three keys; there is a session within the prefix and one outside it, each with a call."""
    made = {name: Caller(client, secret) for name, secret in keys.items()}
    for sid in (OURS, THEIRS):
        assert (await made["all"]("POST", f"/v1/sessions/{sid}/events", json=EVENTS)).status_code == 201
        assert (await made["all"]("GET", f"/v1/sessions/{sid}/context", params={"model": "gpt-4o"})).status_code == 200
    yield made


async def test_a_bound_key_sees_no_session_outside_its_prefix(callers: dict[str, Caller], database: Database) -> None:
    """The response is the same whether the session exists or not."""
    before = await database.fetch("SELECT * FROM sessions ORDER BY external_id")
    for name in operations_with(PrefixAccess.SESSION):
        there, none = [await callers["bound"].operation(name, sid) for sid in (THEIRS, NONE)]
        assert there.status_code == none.status_code == 404, (name, there.text)
        assert there.text.replace(THEIRS, NONE) == none.text
        assert there.headers["content-type"] == "application/problem+json"
        assert there.json() == {
            "type": "/problems/not-found",
            "title": "Not found",
            "status": 404,
            "detail": f"there is no session {THEIRS!r}",
            "session": THEIRS,
        }
        if name not in CREATES_SESSION:
            foreign = await callers["foreign"].operation(name, THEIRS)
            assert foreign.status_code == 404, name
            assert set(foreign.json()) >= {"type", "title", "status", "detail"}
    assert await database.fetch("SELECT * FROM sessions ORDER BY external_id") == before


async def test_a_bound_key_works_as_any_other_within_its_prefix(callers: dict[str, Caller]) -> None:
    apart = {"stream_session", "delete_session"}
    for name in sorted(set(operations_with(PrefixAccess.SESSION)) - apart):
        answer = await callers["bound"].operation(name, OURS)
        assert answer.status_code < 300 or f"no session {OURS!r}" not in answer.text, (name, answer.text)
        assert answer.status_code not in (401, 403, 500, 503), name
    for sid in ("a:fork", OURS):
        assert (await callers["bound"]("DELETE", f"/v1/sessions/{sid}")).status_code == 204


@pytest.mark.wing("stream")
async def test_a_stream_within_the_prefix_is_served(
    callers: dict[str, Caller], server: str, keys: dict[str, str]
) -> None:
    async with (
        httpx.AsyncClient(base_url=server, headers={"Authorization": f"Bearer {keys['bound']}"}) as http,
        http.stream("GET", f"/v1/sessions/{OURS}/stream") as answer,
    ):
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            if line.startswith("data:"):
                assert "8123" in line
                break


async def test_operations_on_the_whole_tenant_are_refused(callers: dict[str, Caller]) -> None:
    for name in operations_with(PrefixAccess.TENANT):
        answer = await callers["bound"].operation(name, OURS)
        assert (answer.status_code, answer.json()["type"]) == (403, "/problems/forbidden"), (name, answer.text)
        assert "'a:'" in answer.json()["detail"]
        assert (await callers["all"].operation(name, OURS)).status_code != 403, name


async def test_operations_on_no_session_are_allowed(callers: dict[str, Caller]) -> None:
    for name in operations_with(PrefixAccess.NONE):
        method, path = operations()[name]
        answer = await callers["bound"](method, path.format(name="default"))
        assert answer.status_code == 200, (name, answer.text)


@pytest.mark.wing("audit")
@pytest.mark.wing("ledger")
@pytest.mark.wing("gateway")
def test_operations_filtered_by_the_prefix_are_listed() -> None:
    """Each operation has its own test below, or with its wing's tests."""
    assert operations_with(PrefixAccess.WITHIN) == [
        "audit_calls",
        "create_key",
        "get_audit_ledger",
        "get_gateway",
        "list_keys",
        "list_sessions",
        "revoke_key",
    ]


async def test_the_list_of_sessions_is_limited_to_the_prefix(callers: dict[str, Caller]) -> None:
    for name in ("a:2", "a", "b", "aa:1", "A:1", "a:_", "a:z.9", "a:@"):
        assert (await callers["all"]("PUT", f"/v1/sessions/{name}", json={})).status_code == 201
    found = [item["id"] for item in await callers["bound"].items("/v1/sessions")]
    assert found == ["a:@", "a:z.9", "a:_", "a:2", OURS]
    pages: list[str] = []
    params: Json = {"limit": 2}
    while True:
        page = (await callers["bound"]("GET", "/v1/sessions", params=params)).json()
        pages += [item["id"] for item in page["items"]]
        if page["next_cursor"] is None:
            break
        params["cursor"] = page["next_cursor"]
    assert pages == found
    assert len(await callers["all"].items("/v1/sessions")) == 10


@pytest.mark.wing("audit")
async def test_the_audit_of_calls_is_limited_to_the_prefix(callers: dict[str, Caller]) -> None:
    unnamed = await callers["bound"]("GET", "/v1/audit/calls")
    assert (unnamed.status_code, unnamed.json()["type"]) == (403, "/problems/forbidden")
    assert [row["session"] for row in await callers["bound"].items("/v1/audit/calls", session=OURS)] == [OURS]
    there = await callers["bound"]("GET", "/v1/audit/calls", params={"session": THEIRS})
    none = await callers["bound"]("GET", "/v1/audit/calls", params={"session": NONE})
    assert there.status_code == 200
    assert there.text == none.text
    assert there.json() == {"items": [], "next_cursor": None}
    assert len(await callers["all"].items("/v1/audit/calls")) == 2


@pytest.mark.wing("ledger")
async def test_the_audit_ledger_is_limited_to_the_prefix(callers: dict[str, Caller]) -> None:
    since = {"since": "2026-01-01T00:00:00Z", "until": "2026-01-02T00:00:00Z"}
    sums = {}
    for name, caller in callers.items():
        recent = (await caller("GET", "/v1/sessions")).json()["items"]
        if recent:
            since = {"since": recent[-1]["created_at"]}
        answer = await caller("GET", "/v1/audit/ledger", params=since)
        assert answer.status_code == 200, answer.text
        sums[name] = answer.json()["totals"]["calls"]
    assert sums == {"all": 2, "bound": 1, "foreign": 0}
    recent = (await callers["bound"]("GET", "/v1/sessions")).json()["items"]
    for model, calls in (("gpt-4o", 1), ("gpt-5", 0)):
        params = {"since": recent[-1]["created_at"], "model": model}
        answer = await callers["bound"]("GET", "/v1/audit/ledger", params=params)
        assert answer.json()["totals"]["calls"] == calls


@pytest.mark.wing("recall")
async def test_recall_over_mcp_is_limited_to_the_prefix(
    callers: dict[str, Caller], server: str, keys: dict[str, str]
) -> None:
    async with mcp_session(server, keys["bound"]) as mcp:
        assert "8123" in text(await mcp.call_tool("recall", {"session": OURS, "query": "port"}))
        there = await mcp.call_tool("recall", {"session": THEIRS, "query": "port"})
        none = await mcp.call_tool("recall", {"session": NONE, "query": "port"})
    assert there.is_error and none.is_error
    assert text(there).replace(THEIRS, NONE) == text(none) == f"there is no session {NONE!r}"


async def test_forks_stay_within_the_prefix(callers: dict[str, Caller]) -> None:
    for name in (THEIRS, "b:new", "a"):
        answer = await callers["bound"]("POST", f"/v1/sessions/{OURS}/fork", json={"id": name})
        assert (answer.status_code, answer.json()["type"]) == (403, "/problems/forbidden")
        assert "b:" not in answer.text
    made = await callers["bound"]("POST", f"/v1/sessions/{OURS}/fork", json={"id": "a:fork"})
    assert (made.status_code, made.json()["parent"]) == (201, {"id": OURS, "at": 1})
    assert len(await callers["all"].items("/v1/sessions")) == 3


async def test_a_parent_outside_the_prefix_is_not_shown(callers: dict[str, Caller]) -> None:
    made = await callers["all"]("POST", f"/v1/sessions/{THEIRS}/fork", json={"id": "a:fork"})
    assert made.json()["parent"] == {"id": THEIRS, "at": 1}
    for answer in (
        (await callers["bound"]("GET", "/v1/sessions/a:fork")).json(),
        (await callers["bound"]("PUT", "/v1/sessions/a:fork", json={})).json(),
        (await callers["bound"].items("/v1/sessions"))[0],
    ):
        assert (answer["id"], answer["parent"]) == ("a:fork", None)
    assert await callers["bound"].items("/v1/sessions", parent=THEIRS) == []
    assert len(await callers["all"].items("/v1/sessions", parent=THEIRS)) == 1
    assert "8123" in (await callers["bound"]("GET", "/v1/sessions/a:fork/context")).text


async def test_what_is_shared_with_sessions_outside_the_prefix_is_not_erased(callers: dict[str, Caller]) -> None:
    """A session with a fork outside is not deleted, nor an event shared with a session outside redacted."""
    await callers["all"]("POST", f"/v1/sessions/{OURS}/fork", json={"id": "b:fork"})
    await callers["all"]("POST", f"/v1/sessions/{THEIRS}/fork", json={"id": "a:fork"})
    for method, path in (
        ("DELETE", f"/v1/sessions/{OURS}?forks=erase"),
        ("DELETE", f"/v1/sessions/{OURS}"),
        ("DELETE", f"/v1/sessions/{OURS}/events/1"),
        ("DELETE", "/v1/sessions/a:fork/events/1"),
    ):
        answer = await callers["bound"](method, path)
        assert (answer.status_code, answer.json()["type"]) == (403, "/problems/forbidden"), path
        assert "b:" not in answer.text
    assert len(await callers["all"].items("/v1/sessions")) == 4
    for sid in (OURS, THEIRS, "a:fork", "b:fork"):
        assert "8123" in (await callers["all"]("GET", f"/v1/sessions/{sid}/events/1")).text
    assert (await callers["bound"]("POST", "/v1/sessions/a:fork/events", json=EVENTS)).status_code == 201
    assert (await callers["bound"]("DELETE", "/v1/sessions/a:fork/events/2")).status_code == 204
    assert (await callers["bound"]("DELETE", "/v1/sessions/a:fork")).status_code == 204
