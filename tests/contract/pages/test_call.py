"""The pages of one call: its blocks, reasons and figures, its copies, and its difference from another."""

import base64
import hashlib
import re
from html import unescape
from typing import Any

import httpx
import pytest

from tests.contract.pages.test_events import LONG, POLICY, calls, page, send, use

__all__ = ["calls"]
pytestmark = [pytest.mark.wing("pages"), pytest.mark.wing("audit")]
CALLS = "/ui/sessions/s/calls"
HOSTILE = "</pre><script>alert(1)</script>\x1b[31m\u202e'\"&"


async def make(client: httpx.AsyncClient, *events: dict[str, Any], **asked: Any) -> str:
    """Append events and make a call; return its id."""
    await send(client, "POST", "/events", {"events": events})
    made: str = (await send(client, "POST", "/context", asked))["call_id"]
    return made


async def test_a_call_shows_its_place_its_blocks_and_why_some_are_stubs(
    client: httpx.AsyncClient, calls: list[str]
) -> None:
    text = await page(client, f"{CALLS}/{calls[3]}")
    assert "Call 4 of 5" in text and "tokens (estimate)" in text and "no outcome was reported" in text
    assert "Expected cache reads: at most" in text
    assert "stub" in text and "by the rule retention : not among last 1" in text
    assert "retention : not among last 1 3 –6 stubbed" in text
    html = (await client.get(f"{CALLS}/{calls[3]}")).text
    keys = dict(re.findall(r'data-key="(\w)" href="([^"]+)"', html))
    assert keys["j"].endswith(calls[4]) and keys["k"].endswith(calls[2])
    assert keys["d"].endswith(f"{calls[2]}/diff/{calls[3]}")


async def test_rules_that_declined_are_named_with_why(client: httpx.AsyncClient, calls: list[str]) -> None:
    text = await page(client, f"{CALLS}/{calls[4]}")
    assert "Asked and declined Rule Why it left out nothing" in text
    record = (await client.get(f"/v1/sessions/s/calls/{calls[4]}")).json()
    assert record["declined"] and all(one["detail"][:100] in text for one in record["declined"])


async def test_the_providers_figures_are_apart_from_the_estimate(client: httpx.AsyncClient, calls: list[str]) -> None:
    usage = {"usage": {"input_tokens": 1234, "cache_read_tokens": 1000}}
    await send(client, "POST", f"/calls/{calls[0]}/outcome", usage)
    text = await page(client, f"{CALLS}/{calls[0]}")
    assert "the provider counted 1,234 and read 1,000 from its cache" in text
    assert "first call of its view, so no cache reads were expected" in text


async def test_every_mark_is_named(client: httpx.AsyncClient) -> None:
    await send(client, "PUT", "", {"policy": POLICY})
    await send(client, "PUT", "/layers/sources", {"content": "a layer"})
    events = [{"type": "system.prompt", "content": "p"}, *use(1), *use(2)]
    injected = [{"name": "rag", "content": "found"}]
    call = await make(client, *events, {"type": "user.message", "content": "x"}, injections=injected)
    html = (await client.get(f"{CALLS}/{call}")).text
    assert {"verbatim", "stub", "layer", "injected"} <= set(re.findall(r"mark-(\w+)", html))
    text = await page(client, f"{CALLS}/{call}")
    assert "Layers sources" in text and "Injected rag, " in text


async def test_cache_markers_are_between_blocks(client: httpx.AsyncClient) -> None:
    await make(client, *use(1), format="anthropic", model="claude-sonnet-4-5")
    call = await make(client, *use(2), format="anthropic", model="claude-sonnet-4-5")
    text = await page(client, f"{CALLS}/{call}")
    assert "▲ cache marker: end of the previous call's stable part" in text
    assert "up to the last marker that an earlier call had written" in text


async def test_contents_are_text_on_every_page(client: httpx.AsyncClient) -> None:
    first = await make(client, {"type": "user.message", "content": HOSTILE})
    second = await make(client, {"type": "assistant.message", "content": HOSTILE * 2})
    for path in (first, f"{first}/diff/{second}", f"{second}/export"):
        answer = await client.get(f"{CALLS}/{path}")
        assert answer.status_code == 200 and "<script>alert" not in answer.text
        assert "\x1b" not in answer.text and "\u202e" not in answer.text and "&lt;script&gt;" in answer.text
    whole = await client.get(f"{CALLS}/{first}/blocks/0")
    assert whole.text == HOSTILE and whole.headers["content-type"].startswith("text/plain")
    assert whole.headers["x-content-type-options"] == "nosniff"


async def test_only_the_beginning_of_a_long_text_is_in_the_page(client: httpx.AsyncClient) -> None:
    call = await make(client, {"type": "user.message", "content": "a" * 10_000 + "the end"}, max_tokens=100_000)
    html = (await client.get(f"{CALLS}/{call}")).text
    assert "the end" not in html and f"{CALLS}/{call}/blocks/0" in html
    assert (await client.get(f"{CALLS}/{call}/blocks/0")).text.endswith("the end")
    assert "the end" in (await client.get(f"{CALLS}/{call}/export")).text
    await page(client, f"{CALLS}/{call}/blocks/99", 404)


async def test_many_blocks_are_on_several_pages(client: httpx.AsyncClient) -> None:
    events = [{"type": ("user" if n % 2 else "assistant") + ".message", "content": f"<{n}>"} for n in range(1, 260)]
    call = await make(client, *events, max_tokens=100_000)
    html = (await client.get(f"{CALLS}/{call}")).text
    assert html.count('<details class="block"') == 200 and html.count('<details class="block" open') == 30
    assert "&lt;259&gt;" in html and "&lt;1&gt;" not in html
    assert "&lt;1&gt;" in (await client.get(f"{CALLS}/{call}?from=0")).text


async def test_the_request_is_copied_byte_for_byte_and_as_a_command(
    client: httpx.AsyncClient, calls: list[str]
) -> None:
    record = (await client.get(f"/v1/sessions/s/calls/{calls[1]}")).json()
    copy = await client.get(f"{CALLS}/{calls[1]}/request.json")
    assert hashlib.sha256(copy.content).hexdigest() == record["sha256"]
    assert copy.headers["content-type"] == "application/json" and copy.headers["x-content-type-options"] == "nosniff"
    command = (await client.get(f"{CALLS}/{calls[1]}/curl")).text
    assert command.startswith("curl https://api.openai.com/") and "$OPENAI_API_KEY" in command
    neutral = await make(client, *use(9), format="blocks")
    assert f"{neutral}/curl" not in (await client.get(f"{CALLS}/{neutral}")).text
    await page(client, f"{CALLS}/{neutral}/curl", 404)


async def test_an_export_needs_nothing_else_and_runs_nothing(client: httpx.AsyncClient, calls: list[str]) -> None:
    answer = await client.get(f"{CALLS}/{calls[4]}/export")
    assert answer.headers["content-disposition"] == 'attachment; filename="call-5.html"'
    found = re.search(r"<style>(.*?)</style>", answer.text, re.DOTALL)
    assert found is not None
    digest = base64.b64encode(hashlib.sha256(found[1].encode()).digest()).decode()
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', answer.text)
    assert policy is not None and answer.headers["content-security-policy"] == unescape(policy[1])
    assert unescape(policy[1]) == f"default-src 'none'; style-src 'sha256-{digest}'"
    assert not re.search(r"<script|<link|<img|href=|src=", answer.text)
    assert LONG[:100] in answer.text and "not among last 1" in answer.text


async def test_a_difference_says_what_changed_why_and_from_where(client: httpx.AsyncClient, calls: list[str]) -> None:
    text = await page(client, f"{CALLS}/{calls[1]}/diff/{calls[2]}")
    assert "From call 2 to call 3" in text and "1 block shown differently. 3 blocks only in the later request." in text
    assert "shown differently retention: not among last 1 1 −" in text
    assert "The first difference is at block 5:" in text and "have to be sent as new" in text
    same = await page(client, f"{CALLS}/{calls[1]}/diff/{calls[1]}")
    assert "Both requests have the same 6 blocks." in same


async def test_changed_words_are_marked(client: httpx.AsyncClient) -> None:
    first = await make(client, {"type": "system.prompt", "content": "be brief"}, *use(1))
    second = await make(client, {"type": "system.prompt", "content": "be long"})
    html = (await client.get(f"{CALLS}/{first}/diff/{second}")).text
    assert "be <del>brief</del><ins>long</ins>" in html


async def test_any_call_is_compared_by_its_number(client: httpx.AsyncClient, calls: list[str]) -> None:
    led = await client.get(f"{CALLS}/{calls[4]}/diff?number=2")
    assert (led.status_code, led.headers["location"]) == (303, f"{CALLS}/{calls[1]}/diff/{calls[4]}")
    for number in ("0", "6", "x", ""):
        await page(client, f"{CALLS}/{calls[4]}/diff?number={number}", 404)


@pytest.mark.parametrize("ending", ["", "/request.json", "/curl", "/export", "/blocks/0", "/diff?number=1"])
@pytest.mark.parametrize("id", ["01a21720-d33f-78fc-ad08-f29b08b546a3", "57x"])
async def test_an_unknown_call_is_not_found(client: httpx.AsyncClient, calls: list[str], id: str, ending: str) -> None:
    if id != "57x" and ending.startswith("/diff"):
        return
    await page(client, f"{CALLS}/{id}{ending}", 404)
