"""The page of a session's window now."""

import re
from typing import Any

import httpx
import pytest

from tests.contract.pages.test_events import LONG, calls, page, send, use

__all__ = ["calls"]
pytestmark = [pytest.mark.wing("audit"), pytest.mark.wing("compare")]
PAGE = "/ui/sessions/s"


def parts(html: str) -> dict[str, float]:
    """Return the parts of the bar with their widths in percent."""
    found = re.findall(r'fill-(\w+)" (?:fill="[^"]+")? x="[\d.]+%" y="0" width="([\d.]+)%"', html)
    return {name: float(width) for name, width in found}


async def context(client: httpx.AsyncClient, **asked: Any) -> Any:
    return await send(client, "POST", "/context", asked)


async def test_a_session_without_a_call_says_so(client: httpx.AsyncClient) -> None:
    await send(client, "POST", "/events", {"events": use(1)})
    text = await page(client, PAGE)
    assert "No call of view main was recorded yet." in text and "The log has 3 events," in text
    assert "POST /v1/sessions/s/context" in text


async def test_the_room_that_remains_is_first_and_counts_what_was_appended(client: httpx.AsyncClient) -> None:
    await send(client, "POST", "/events", {"events": use(1)})
    made = await context(client, max_tokens=10_000)
    left = made["tokens"]["target"] - made["tokens"]["estimate"]
    assert f"{left:,} of {made['tokens']['target']:,} tokens left before older content is reduced" in await page(
        client, PAGE
    )
    events = (await send(client, "POST", "/events", {"events": use(2)}))["events"]
    since = sum(event["tokens"] for event in events)
    text = await page(client, PAGE)
    assert f"{left - since:,} of" in text and f"3 events appended, {since} tokens" in text
    assert "none was reported" in text and "Parts of the window of 10,000 tokens" in text


async def test_the_bar_has_every_part_and_adds_up(client: httpx.AsyncClient) -> None:
    prompt, tools = {"type": "system.prompt", "content": LONG}, {"type": "tools", "content": [{"name": "list"}]}
    await send(client, "POST", "/events", {"events": [prompt, tools, *use(1), *use(2)]})
    await send(client, "PUT", "/layers/sources", {"content": LONG})
    injected = [{"name": "rag", "content": LONG}]
    made = await context(client, max_tokens=10_000, outside_tokens=500, injections=injected)
    found = parts((await client.get(PAGE)).text)
    assert sum(found.values()) == pytest.approx(100, abs=0.1)
    assert found["outside"] == pytest.approx(5) and found["reserve"] == pytest.approx(10)
    shares = made["tokens"]["by_source"]
    assert found["layers"] + found["injections"] == pytest.approx(shares["ephemeral"] / 100, abs=0.01)
    assert min(found["layers"], found["injections"]) > 2
    assert {"tools", "system", "history", "current_turn", "remains", "margin"} <= found.keys()


async def test_the_threshold_is_marked_where_it_is_below_the_target(client: httpx.AsyncClient) -> None:
    await send(client, "PUT", "", {"policy": {"window_tokens": 10_000, "trigger": {"ratio": 0.2}}})
    await send(client, "POST", "/events", {"events": use(1)})
    await context(client)
    text = await page(client, PAGE)
    assert "of 2,000 tokens left" in text and "threshold 2,000" in text and "reduces it above 2,000" in text
    await send(client, "POST", "/events", {"events": [{"type": "user.message", "content": LONG * 10}]})
    assert "tokens more than the 2,000 above which older content is reduced" in await page(client, PAGE)


async def test_the_next_content_that_would_go_is_named_with_the_reason(
    client: httpx.AsyncClient, calls: list[str]
) -> None:
    await send(client, "POST", "/events", {"events": use(6)})
    text = await page(client, PAGE)
    assert "in the same epoch, and leave out nothing more. If it had to be reduced, it would be" in text
    assert re.search(r"events 13 to 15 stubbed retention: not among last 1 \d+ ", text)


async def test_content_that_the_next_call_leaves_out_is_named(client: httpx.AsyncClient) -> None:
    await send(client, "POST", "/events", {"events": use(1, result=LONG * 4)})
    await context(client, max_tokens=5_000)
    await send(client, "POST", "/events", {"events": [*use(2), *use(3), *use(4, result=LONG * 4)]})
    text = await page(client, PAGE)
    assert "and open a new epoch (budget)." in text and "Newly left out, shortened or summarized by that call" in text
    assert re.search(r"events? 3 (to \d+ )?stubbed economics: not among last 2 [\d,]+ ", text)


async def test_estimates_and_the_provider_s_count_are_labelled(client: httpx.AsyncClient) -> None:
    await send(client, "PUT", "", {"model": "claude-sonnet-4-5"})
    await send(client, "POST", "/events", {"events": use(1)})
    first = await context(client)
    await send(
        client, "POST", f"/calls/{first['call_id']}/outcome", {"usage": {"input_tokens": 4_321, "cache_read_tokens": 0}}
    )
    text = await page(client, PAGE)
    assert "4,321 input tokens reported for this call" in text
    assert f"its {first['cache']['prefix_tokens']:,} stable tokens are too few" in text
    await send(client, "POST", "/events", {"events": use(2, result=LONG * 20)})
    second = await context(client, format="anthropic")
    text = await page(client, PAGE)
    assert f"{second['tokens']['estimate']:,} tokens for its request, by" in text
    assert "4,321 input tokens reported for an earlier call" in text
    assert f"holds {second['cache']['tokens']:,} tokens of the last call by estimate, until" in text


async def test_a_cache_of_an_unknown_model_is_unknown(client: httpx.AsyncClient) -> None:
    await send(client, "PUT", "", {"model": "home-made"})
    await send(client, "POST", "/events", {"events": use(1)})
    await context(client)
    text = await page(client, PAGE)
    assert "nothing is known of this model's cache" in text and "the window is assumed" in text


async def test_a_window_that_fits_nothing_says_why(client: httpx.AsyncClient) -> None:
    await send(client, "POST", "/events", {"events": use(1)})
    await context(client, max_tokens=3_000)
    await send(client, "POST", "/events", {"events": [{"type": "user.message", "content": LONG * 40}]})
    assert "The next call would fail, because no context fits" in await page(client, PAGE)


async def test_other_views_and_lines_are_linked(client: httpx.AsyncClient, calls: list[str]) -> None:
    await context(client, view="title")
    await send(client, "POST", "/rewind", {"to": 9})
    html = (await client.get("/ui/sessions/s@line.1")).text
    assert 'href="/ui/sessions/s@line.1?view=title"' in html and 'href="/ui/sessions/s@line.2"' in html
    assert "view title" in (await client.get("/ui/sessions/s@line.1?view=title")).text
    assert "No call of view main" in (await client.get("/ui/sessions/s")).text


async def test_the_next_reduction_of_a_long_log_is_named_without_a_preview(
    client: httpx.AsyncClient, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.wings.pages.sessions.PLANNED_MAX", 0)
    text = await page(client, PAGE)
    found = (await client.get("/v1/sessions/s/next-evictions")).json()
    assert "A call made now would send" not in text
    assert f"The context takes {found['tokens']:,} tokens now" in text
    assert found["evictions"], "a reduction would leave something out"
    for one in found["evictions"][:5]:
        assert f"{one['reducer']}: {one['reason'].replace('_', ' ')}" in text


async def test_a_log_that_takes_long_to_plan_names_the_operation_that_plans_it(
    client: httpx.AsyncClient, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.wings.pages.sessions.REDUCED_MAX", 0)
    assert "GET /v1/sessions/s/next-evictions does" in await page(client, PAGE)
