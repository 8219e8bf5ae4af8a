"""The pages of events: a search in the log, and what became of an event in each call."""

import re
from html import unescape
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest

pytestmark = [pytest.mark.wing("audit"), pytest.mark.wing("compare")]

POLICY = {"evict": "every_assembly", "retention": {"keep_last": 1, "min_tokens": 0}}
LONG = "the listing of a folder, with many names of files in it " * 20


async def send(client: httpx.AsyncClient, method: str, path: str, body: Any) -> Any:
    """Send JSON; return that of the response."""
    answer = await client.request(method, f"/v1/sessions/s{path}", json=body)
    assert answer.is_success, answer.text
    return answer.json()


def use(number: int, *, result: str = LONG) -> list[dict[str, Any]]:
    """Return a turn in which a tool is used: three events, the last one its result."""
    call = {"type": "tool.call", "call_id": f"c{number}", "tool": "list", "arguments": {"path": f"/folder{number}"}}
    asked = {"type": "user.message", "content": f"list folder {number}"}
    return [asked, call, {"type": "tool.result", "call_id": f"c{number}", "content": f"{number}: {result}"}]


@pytest.fixture
async def calls(client: httpx.AsyncClient) -> list[str]:
    """Make a session of five turns with a call after each; the ids of the calls."""
    await send(client, "PUT", "", {"policy": POLICY})
    made = []
    for number in range(1, 6):
        await send(client, "POST", "/events", {"events": use(number)})
        made.append((await send(client, "POST", "/context", {}))["call_id"])
    return made


async def page(client: httpx.AsyncClient, path: str, status: int = 200) -> str:
    """Return a page's text, without its tags."""
    answer = await client.get(path, follow_redirects=True)
    assert answer.status_code == status, answer.text
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", answer.text)).split())


def link(html: str, ending: str) -> str:
    """Return the first link of a page whose address ends so."""
    return next(unescape(one) for one in re.findall(r'<a [^>]*href="([^"]+)"', html) if unescape(one).endswith(ending))


async def test_why_an_event_was_forgotten_at_a_call_takes_three_clicks(
    client: httpx.AsyncClient, calls: list[str]
) -> None:
    first = (await client.get("/ui/")).text
    session = (await client.get(link(first, "/ui/sessions/s") + "/events")).text
    form = re.search(r'<form[^>]*role="search"[^>]*action="([^"]+)"', session)
    assert form is not None and {"find", "call"} <= set(re.findall(r'name="(\w+)"', session))
    found = (await client.get(f"{form[1]}?{urlencode({'find': '1: the listing', 'call': '4'})}")).text
    answer = await page(client, link(found, "/events/3?call=4"))
    assert "this event was shown as a stub" in answer
    assert re.search(
        r"Epoch \d+ \(\w+\) decided it at call 2 : retention: not among last 1\. It has been so since\.", answer
    )


async def test_the_life_of_an_event_is_divided_where_it_changed(client: httpx.AsyncClient, calls: list[str]) -> None:
    html = (await client.get("/ui/sessions/s/events/3")).text
    rows = re.findall(r'class="fate-(\w+)" x="([\d.]+)%" y="0" width="([\d.]+)%"', html)
    assert rows == [("verbatim", "0.0", "20.0"), ("stubbed", "20.0", "80.0")]
    assert f"/calls/{calls[0]}/diff/{calls[1]}" in html and "Its call" in html and "/events/2" in html
    assert "Its result" in (await client.get("/ui/sessions/s/events/2")).text
    later = await page(client, "/ui/sessions/s/events/15?call=2")
    assert "The context of call 2 does not reach this event: it was appended later." in later


async def test_an_event_in_no_call_and_one_that_is_not_there(client: httpx.AsyncClient, calls: list[str]) -> None:
    await send(client, "POST", "/events", {"events": use(6)})
    assert "No call of view main was recorded since" in await page(client, "/ui/sessions/s/events/18")
    await page(client, "/ui/sessions/s/events/19", 404)
    await page(client, "/ui/sessions/s/events/3?call=9", 404)
    await page(client, "/ui/sessions/s/events/3?call=nine", 404)


async def test_a_search_says_which_events_it_read_and_shows_the_match(
    client: httpx.AsyncClient, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    html = (await client.get("/ui/sessions/s/events?find=FOLDER3")).text
    assert "1 of the events 1 to 15 have “FOLDER3”" in html and "<mark>folder3</mark>" in html
    monkeypatch.setattr("app.wings.pages.log.SEARCHED_MAX", 4)
    part = (await client.get("/ui/sessions/s/events?find=folder3")).text
    assert "0 of the events 12 to 15" in part and "11 were not searched yet" in part
    assert "<mark>folder3</mark>" in (await client.get(link(part, "before=12"))).text
    led = await client.get("/ui/sessions/s/events?find=7&call=3")
    assert (led.status_code, led.headers["location"]) == (303, "/ui/sessions/s/events/7?call=3")


async def test_a_list_with_a_call_ends_where_its_context_ended(client: httpx.AsyncClient, calls: list[str]) -> None:
    text = await page(client, f"/ui/sessions/s/events?call={calls[1]}&type=tool.result")
    assert "2 of the events 1 to 6 are of the type tool.result" in text and "at call 2" in text
    assert "shown as a stub retention: not among last 1" in text and "ended at event 6: search the whole log" in text


async def test_the_text_of_an_event_is_plain_and_whole(client: httpx.AsyncClient, calls: list[str]) -> None:
    html = {"type": "user.message", "content": "<script>alert(1)</script>" + "x" * 9_000}
    await send(client, "POST", "/events", {"events": [html]})
    shown = (await client.get("/ui/sessions/s/events/16")).text
    assert "<script>alert" not in shown and len(shown) < 14_000 and "9,025 characters" in shown
    whole = await client.get("/ui/sessions/s/events/16/text")
    assert whole.headers["content-type"].startswith("text/plain") and whole.text == html["content"]


async def test_lines_and_forks_have_the_events_that_they_share(client: httpx.AsyncClient, calls: list[str]) -> None:
    await send(client, "POST", "/fork", {"at": 6, "id": "f"})
    await send(client, "POST", "/rewind", {"to": 9})
    shared, own = (
        await page(client, "/ui/sessions/s@line.1/events/3"),
        await page(client, "/ui/sessions/s@line.1/events/9"),
    )
    assert "f , a fork" in shared and "s@line.2 , a line" in shared
    assert "a fork" not in own and "s@line.2 , a line" in own
    assert "a line" not in await page(client, "/ui/sessions/s@line.1/events/12")
    assert "s , of which this session is a fork" in await page(client, "/ui/sessions/f/events/3")
