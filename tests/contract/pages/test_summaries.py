"""The page of a session's summaries."""

import re
from html import unescape
from typing import Any

import httpx
import pytest

from app.store.engine import Database
from app.tenants import Tenants

pytestmark = pytest.mark.wing("pages")

SAME_SITE = {"Sec-Fetch-Site": "same-origin"}
PAGE = "/ui/sessions/s/summaries"


@pytest.fixture
async def summary(client: httpx.AsyncClient, worker: None) -> dict[str, Any]:
    """Make a session with a summary; return it."""
    long = "the words of a file " * 200
    events: list[dict[str, Any]] = []
    for number in range(12):
        call = {"type": "tool.call", "call_id": f"c{number}", "tool": "read", "arguments": {"path": f"f{number}"}}
        result = {"type": "tool.result", "call_id": f"c{number}", "content": f"{number}: {long}"}
        events += [{"type": "user.message", "content": f"read file {number}"}, call, result]
    await client.post("/v1/sessions/s/events", json={"events": events})
    run = await client.post("/v1/sessions/s/compactions", json={"wait_ms": 60_000})
    assert run.is_success, run.text
    items = (await client.get("/v1/sessions/s/summaries")).json()["items"]
    return dict(items[0])


def text_of(html: str) -> str:
    """Return a page's text, without its tags."""
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", html)).split())


async def test_a_summary_opens_with_its_text_and_originals(client: httpx.AsyncClient, summary: dict[str, Any]) -> None:
    listed = (await client.get(PAGE)).text
    assert f"/events/{summary['from_seq']}" in listed and "Every event is accounted for exactly once" in text_of(listed)
    opened = text_of((await client.get(PAGE, params={"open": summary["id"]})).text)
    whole = (await client.get(f"/v1/sessions/s/summaries/{summary['id']}")).json()
    assert " ".join(whole["text"].split()) in opened
    assert f"Event {summary['from_seq']} , user.message" in opened
    assert (await client.get(PAGE, params={"open": "none"})).status_code == 422
    assert (await client.get(PAGE, params={"open": "00000000-0000-0000-0000-000000000000"})).status_code == 404


async def test_only_an_admin_requests_a_compaction_and_only_from_the_page(
    client: httpx.AsyncClient, database: Database
) -> None:
    await client.put("/v1/sessions/s", json={})
    foreign = await client.post("/ui/sessions/s/compact", headers={"Sec-Fetch-Site": "cross-site"})
    assert foreign.status_code == 403
    led = await client.post("/ui/sessions/s/compact", headers=SAME_SITE)
    assert led.status_code == 303 and led.headers["location"].startswith(f"{PAGE}?done=")
    assert "The compaction is" in (await client.get(led.headers["location"])).text
    assert len((await client.get("/v1/sessions/s/compactions")).json()["items"]) == 1
    tenants = Tenants(database, None)
    keys = [(await tenants.create_key("default", "k", scopes)).secret for scopes in (["admin"], ["read", "ingest"])]
    for key, status, button in zip(keys, (303, 403), (True, False), strict=True):
        bearer = {"Authorization": f"Bearer {key}"}
        assert ("Compact now" in (await client.get(PAGE, headers=bearer)).text) is button
        assert (await client.post("/ui/sessions/s/compact", headers=SAME_SITE | bearer)).status_code == status


async def test_a_failed_run_can_be_repeated(client: httpx.AsyncClient, database: Database) -> None:
    await client.put("/v1/sessions/s", json={})
    run = (await client.post("/v1/sessions/s/compactions", json={})).json()
    await database.execute(
        "UPDATE compactions SET state = 'failed', error = 'no <answer>' WHERE id = :id", id=run["id"]
    )
    await database.execute("DELETE FROM pgqueuer")
    page = (await client.get(PAGE)).text
    assert "no &lt;answer&gt;" in page and f'value="{run["id"]}"' in page
    led = await client.post("/ui/sessions/s/compact", data={"run": run["id"]}, headers=SAME_SITE)
    assert led.headers["location"] == f"{PAGE}?done=scheduled"
    assert (await client.post("/ui/sessions/s/compact", data={"run": "x"}, headers=SAME_SITE)).status_code == 422


async def test_a_session_without_a_summary_and_an_unknown_one(client: httpx.AsyncClient) -> None:
    await client.put("/v1/sessions/s", json={})
    assert "No summary is live." in (await client.get(PAGE)).text
    assert (await client.get("/ui/sessions/none/summaries")).status_code == 404
