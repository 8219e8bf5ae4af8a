""" "Why did the agent forget X at call 57?", answered in three clicks and by one command."""

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import httpx
import pytest

from tests.browser.sites import RECORDED, Site
from tests.support.processes import outcome, palimpsest

if TYPE_CHECKING:
    from playwright.async_api import Browser, Locator, Page

pytestmark = [pytest.mark.browser, pytest.mark.wing("pages")]
CALL: Final = 57
CLICKS_MAX: Final = 3
TEXT_CHARS: Final = 40
REASON: Final = re.compile(r"call \d+ on, epoch .*, by (\w+): (\w+)$", re.MULTILINE)
"""The rule and the reason in a line of the command's answer."""


@dataclass(frozen=True)
class Forgotten:
    """A text of an event that a call's context left out; the call has a number, counted from 1."""

    seq: int
    text: str
    call: int


class Reader:
    """A person at a page, whose clicks are counted."""

    def __init__(self, page: "Page") -> None:
        self.page, self.clicks = page, 0

    async def click(self, target: "Locator") -> None:
        """Click, and wait for the next page."""
        self.clicks += 1
        await target.click()
        await self.page.wait_for_load_state()


@pytest.fixture
async def forgotten(site: Site) -> Forgotten:
    """A line of a tool's result that call 57 left out, or the last call of a shorter session."""
    async with httpx.AsyncClient(base_url=f"{site.url}/v1/sessions/{RECORDED}", timeout=60, verify=False) as http:
        calls = (await http.get("/calls", params={"limit": 200})).json()["items"][::-1]
        number = min(CALL, len(calls))
        call = calls[number - 1]["call_id"]
        context = (await http.get(f"/calls/{call}/context")).json()
        request = json.dumps(context["request"], ensure_ascii=False)
        for run in context["evictions"]:
            for seq in range(run["from_seq"], run["to_seq"] + 1):
                event = (await http.get(f"/events/{seq}")).json()
                for text in lines_of(event):
                    if json.dumps(text, ensure_ascii=False)[1:-1] not in request:
                        return Forgotten(seq, text, number)
    raise AssertionError(f"call {number} left nothing out")


def lines_of(event: dict[str, Any]) -> list[str]:
    """Return the beginnings of an event's long lines."""
    content = event.get("content")
    lines = content.splitlines() if isinstance(content, str) else []
    return [line.strip()[:TEXT_CHARS] for line in lines if len(line.strip()) > TEXT_CHARS]


@pytest.mark.parametrize("scripts", [True, False], ids=["with JavaScript", "without"])
async def test_three_clicks_answer_it(site: Site, chromium: "Browser", forgotten: Forgotten, scripts: bool) -> None:
    context = await chromium.new_context(base_url=site.url, java_script_enabled=scripts)
    page = await context.new_page()
    reader = Reader(page)
    await page.goto("/ui/")
    await reader.click(page.get_by_role("link", name=RECORDED, exact=True).first)
    await page.get_by_label("Find an event").fill(forgotten.text)
    await page.get_by_label("at call").fill(str(forgotten.call))
    await reader.click(page.get_by_role("button", name="Find", exact=True))
    await reader.click(page.get_by_role("rowheader", name=str(forgotten.seq), exact=True).get_by_role("link"))
    answer = await page.locator("main").inner_text()
    await context.close()
    assert reader.clicks <= CLICKS_MAX
    assert f"At call {forgotten.call} (" in answer
    rule, reason = REASON.findall(await explain(site, forgotten))[-1]
    assert f"{rule}: {reason.replace('_', ' ')}" in answer


async def test_one_command_answers_it(site: Site, forgotten: Forgotten) -> None:
    said = await explain(site, forgotten)
    assert f'Its request did not hold "{forgotten.text}"' in said
    assert f"Event {forgotten.seq}, " in said
    assert REASON.search(said)


async def explain(site: Site, forgotten: Forgotten) -> str:
    """Return the output of the command."""
    command = ("explain", RECORDED, "--find", forgotten.text, "--call", str(forgotten.call), "--url", site.url)
    result = await outcome(await palimpsest(*command, settings={}))
    assert result.returncode == 0, result.stderr
    return result.stdout
