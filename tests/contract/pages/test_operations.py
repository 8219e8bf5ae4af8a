"""The pages of the gateway's requests and of the server's health."""

import re
from html import unescape
from uuid import UUID

import httpx
import pytest

from app.runtime.wing import CALLS_MAX, TENANTS_MAX, ForwardedCall, ForwardedCalls
from app.store.engine import Database
from app.store.ids import session_key
from app.tenants import DEFAULT_TENANT, Tenants
from tests.support.provider import Provider

pytestmark = pytest.mark.wing("all")

BODY = {"model": "claude-sonnet-5-5", "max_tokens": 100, "messages": [{"role": "user", "content": "hi"}]}
RUN = """
INSERT INTO compactions (session_id, id, tenant_id, state, reason, error, attempts)
VALUES (:session_id, :id, :tenant_id, :state, 'pressure', :error, :attempts)
"""


async def text_of(client: httpx.AsyncClient, path: str, key: str | None = None) -> str:
    """Return a page's text, without its tags."""
    answer = await client.get(path, headers={} if key is None else {"Authorization": f"Bearer {key}"})
    assert answer.status_code == 200, answer.text
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", answer.text)).split())


async def test_the_gateways_requests_have_their_mode_reason_and_window(
    http: httpx.AsyncClient, provider: Provider
) -> None:
    assert "No request came through the gateway" in await text_of(http, "/ui/gateway")
    named = {"x-palimpsest-session": "demo"}
    sent = await http.post("/gateway/anthropic/v1/messages", json=BODY, headers=named)
    assert sent.headers["x-palimpsest-mode"] == "context"
    await http.post("/gateway/anthropic/v1/messages", json=BODY)
    broken = await http.post("/gateway/anthropic/v1/messages", content=b"no JSON", headers=named)
    assert broken.headers["x-palimpsest-reason"] == "unreadable"
    page = await text_of(http, "/ui/gateway")
    assert "1 a context in place of the conversation" in page and "unreadable : 1" in page
    assert "kept, for claude-sonnet-5-5" in page and "the client's own" in page
    assert f"/calls/{sent.headers['x-palimpsest-call']}" in (await http.get("/ui/gateway")).text


def test_a_process_remembers_a_bounded_number_of_requests() -> None:
    remembered = ForwardedCalls()
    for number in range(CALLS_MAX + 1):
        remembered.note(UUID(int=1), ForwardedCall("anthropic", f"/{number}", "bypass"))
    assert [call.path for call in remembered.newest(UUID(int=1))] == [f"/{n}" for n in range(CALLS_MAX, 0, -1)]
    for tenant in range(2, TENANTS_MAX + 2):
        remembered.note(UUID(int=tenant), ForwardedCall("openai", "/", "bypass"))
    assert not remembered.newest(UUID(int=1)) and remembered.newest(UUID(int=2))


async def test_health_shows_the_readers_own_failed_compactions(client: httpx.AsyncClient, database: Database) -> None:
    assert "The server is ready , and no job is overdue or dead." in await text_of(client, "/ui/health")
    for number, name in enumerate(("a:1", "b:1")):
        await client.put(f"/v1/sessions/{name}", json={})
        for state, attempts in (("failed", 0), ("scheduled", 3), ("scheduled", 0)):
            values = {
                "state": state,
                "attempts": attempts,
                "error": f"{name} {state}: no answer" if attempts == 0 else None,
            }
            id = UUID(int=number * 10 + attempts + len(state))
            await database.execute(
                RUN, session_id=session_key(DEFAULT_TENANT, name), tenant_id=DEFAULT_TENANT, id=id, **values
            )
    page = await text_of(client, "/ui/health")
    assert "a:1 failed: no answer" in page and "b:1 failed: no answer" in page and "scheduled: no answer" not in page
    assert "0 running, 4 scheduled" in page
    tenants = Tenants(database, None)
    bound = (await tenants.create_key("default", "k", ["read"], session_prefix="a:")).secret
    theirs = (await tenants.create_key("other", "k", ["admin"])).secret
    page = await text_of(client, "/ui/health", bound)
    assert "a:1 failed" in page and "b:1" not in page and "2 scheduled" in page
    page = await text_of(client, "/ui/health", theirs)
    assert "a:1" not in page and "0 scheduled" in page
