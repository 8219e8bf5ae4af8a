"""A page as it is seen in chromium: its text, its messages, its requests, and the findings of axe-core."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from playwright.async_api import Browser, ConsoleMessage, Dialog, Page

AXE: Final = {"resultTypes": ["violations"]}
SCHEMES: Final = ("light", "dark")


@dataclass
class Look:
    """A page that was opened in a browser."""

    address: str
    text: str = ""
    messages: list[str] = field(default_factory=list)
    """Messages on the console, uncaught errors, and dialogs that a script opened."""
    requests: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    """Rules of axe-core that elements break, in light and in dark colours."""


async def look(browser: "Browser", address: str, *, scripts: bool = True, axe: bool = False) -> Look:
    """Open a page in a new context of a browser."""
    seen = Look(address)
    context = await browser.new_context(java_script_enabled=scripts, color_scheme="light")
    try:
        page = await context.new_page()
        listen(page, seen)
        await page.goto(address)
        seen.text = await page.locator("main").inner_text()
        for scheme in SCHEMES if axe else ():
            await page.emulate_media(color_scheme=scheme)
            seen.findings += [f"{scheme}: {one}" for one in await check(page)]
    finally:
        await context.close()
    return seen


async def check(page: "Page") -> list[str]:
    """Return the findings of axe-core on a page, all rules on."""
    from axe_playwright_python.async_playwright import Axe

    found = (await Axe().run(page, options=AXE)).response
    return [_finding(one) for one in found["violations"]]


def _finding(violation: dict[str, Any]) -> str:
    nodes = "; ".join(str(node["html"])[:160] for node in violation["nodes"][:3])
    return f"{violation['id']} ({violation['help']}), {len(violation['nodes'])} times: {nodes}"


def listen(page: "Page", seen: Look) -> None:
    """Note a page's messages and requests from now on."""

    def said(message: "ConsoleMessage") -> None:
        if message.type in ("error", "warning"):
            seen.messages.append(f"console: {message.text}")

    async def opened(dialog: "Dialog") -> None:
        seen.messages.append(f"dialog: {dialog.message}")
        await dialog.dismiss()

    page.on("console", said)
    page.on("pageerror", lambda error: seen.messages.append(f"error: {error}"))
    page.on("dialog", opened)
    page.on("request", lambda request: seen.requests.append(request.url))
