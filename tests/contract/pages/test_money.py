"""The page of a session's bill, and of the signs of damage."""

import json
import re
from html import unescape
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.wing("all")

POLICY = {"evict": "every_assembly", "retention": {"keep_last": 1, "min_tokens": 0}}


async def send(client: httpx.AsyncClient, method: str, path: str, body: Any = None) -> Any:
    """Send JSON; return that of the response."""
    answer = await client.request(method, f"/v1/sessions/s{path}", json=body)
    assert answer.is_success, answer.text
    return answer.json()


async def text_of(client: httpx.AsyncClient) -> str:
    """Return the page's text, without its tags."""
    answer = await client.get("/ui/sessions/s/money")
    assert answer.status_code == 200, answer.text
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", answer.text)).split())


def use(id: str, tool: str, result: str, **arguments: str) -> list[dict[str, Any]]:
    """Return a tool call and its result."""
    call = {"type": "tool.call", "call_id": id, "tool": tool, "arguments": arguments}
    return [call, {"type": "tool.result", "call_id": id, "content": result}]


async def step(client: httpx.AsyncClient, events: list[dict[str, Any]], *, uncached: bool = False) -> Any:
    """Append events and get a context; if `uncached`, report that the provider had nothing of it in its cache."""
    await send(client, "POST", "/events", {"events": events})
    made = await send(client, "POST", "/context", {"model": "claude-sonnet-5-5", "format": "anthropic"})
    if uncached:
        size = made["tokens"]["estimate"]
        usage = {"input_tokens": size, "cache_read_tokens": 0, "cache_write_tokens": size}
        await send(client, "POST", f"/calls/{made['call_id']}/outcome", {"usage": usage})
    return made


async def test_figures_are_those_of_the_ledger_and_a_loss_is_one(client: httpx.AsyncClient) -> None:
    await send(client, "PUT", "", {"policy": POLICY})
    for number in range(1, 9):
        asked = {"type": "user.message", "content": f"read {number}"}
        await step(client, [asked, *use(f"c{number}", "read", "a few words", path=f"f{number}")], uncached=number > 1)
    totals = (await client.get("/v1/sessions/s/ledger")).json()["totals"]
    assert totals["saved"] < 0, "append-only would have read from the cache"
    page = await text_of(client)
    share = f"{-100 * totals['saved'] / totals['append_only']['billed']:.1f}% more"
    assert f"8 calls cost {round(totals['input']['billed']):,} , {share} than the" in page
    assert "7 of the calls are as the provider reported them, 1 as the record lets expect" in page
    assert "No summary was written for this session." in page


async def test_a_result_that_was_left_out_and_fetched_or_recalled_is_damage(client: httpx.AsyncClient) -> None:
    await send(client, "PUT", "", {"policy": POLICY})
    long = "the words of a file " * 80
    await step(client, [{"type": "user.message", "content": "go"}, *use("c1", "read", long, path="a")])
    await step(client, use("c2", "read", long, path="b"))
    await step(client, use("c3", "list", long, path="c"))  # by now c1 and c2 are stubs
    assert "None: no tool was called again" in await text_of(client)
    await step(client, use("c4", "read", long, path="a"))
    found = json.dumps({"items": [{"seq": 5, "content": long}, {"seq": 7, "visible": True}], "omitted": 0})
    await step(client, use("c5", "mcp__palimpsest__recall", found, query="words"))
    page = await text_of(client)
    assert "Left out, then recalled: 1" in page and "fetched again by the same tool call: 1" in page
    assert "The result or text of event 3 (read) was stubbed by epoch" in page
    assert "The result or text of event 5 (read) was stubbed by epoch" in page


async def test_a_session_without_a_call_and_an_unknown_one(client: httpx.AsyncClient) -> None:
    await send(client, "PUT", "", {})
    assert "No context was requested in view main yet" in await text_of(client)
    assert (await client.get("/ui/sessions/none/money")).status_code == 404
