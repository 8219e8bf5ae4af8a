"""The sessions that the pages are looked at with."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from tests.acceptance.conftest import Command
from tests.support.processes import outcome, palimpsest

ROOT: Final = Path(__file__).parents[2]
SHARED: Final = ROOT.parent / "shared" / "data"
"""The folder of recordings that CI has, next to the repository."""
RECORDED: Final = "recorded"
HOSTILE: Final = "--:@hostile._-"
LINE_CHARS: Final = 2_000_000
SCRIPT: Final = '<script>alert("ran")</script>'
TEXTS: Final = (
    SCRIPT,
    '"><img src=x onerror="alert(1)">',
    "' autofocus onfocus=alert(1) x='",
    "javascript:alert(1)",
    "</textarea></pre></title></style></script><svg/onload=alert(1)>",
    "{{ 7 * 7 }} {% raw %} ${alert(1)} <%= 1 %> &lt;b&gt; &#60;i&#62;",
    "]]><!--<a href=//evil.example>-->",
    "right \u202eto\u202c left \u2066isolated\u2069 \u200f\u200e marks",
    "zero\u200b\u200d\ufeffwidth, \u0000 \u0007 \u001b[31m \u0085 \u2028 \u2029 controls",
    "\ud83d\udc08\u200d\u2b1b \U0001f468\u200d\U0001f469\u200d\U0001f467 \ufdd0 \uffff",
    "\U0010ffff Z\u0351\u036b\u0343\u0327\u0351 \u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd \ue000",
    "lone \ud83d surrogate, and \udc08 its other half",
)
"""Contents that must be text on every page."""


@dataclass(frozen=True)
class Site:
    """A running server: its address, its process and its database."""

    url: str
    serving: Command
    database_url: str


def coding_sessions(recordings: Path | None) -> tuple[Path, tuple[str, ...]]:
    """Return a coding agent's recording and the options to replay it with: our own sample without a folder."""
    found = (recordings or SHARED) / "coding_agent.jsonl"
    if found.exists():
        return found, ("--limit", "1")
    return ROOT / "tests" / "samples" / "agent_log.jsonl", ("--limit", "1", "--max-tokens", "9000")


async def replay(url: str, recording: tuple[Path, tuple[str, ...]]) -> None:
    """Replay recordings and keep them."""
    file, options = recording
    command = ("replay", str(file), *options, "--url", url, "--session", RECORDED, "--keep")
    result = await outcome(await palimpsest(*command, settings={}))
    assert result.returncode == 0, result.stdout + result.stderr


async def fill_hostile(url: str) -> None:
    """Make a session in which every text that a caller chooses is hostile, with calls that leave some of it out."""
    async with httpx.AsyncClient(base_url=url, timeout=60, verify=False) as http:
        path = f"/v1/sessions/{HOSTILE}"
        policy = {"window_tokens": 9_000, "reserve_tokens": 0, "retention": {"keep_last": 1, "min_tokens": 0}}
        metadata = {named(text): named(text) for text in TEXTS}
        await send(http, "PUT", path, {"model": "<b>gpt-5</b>", "policy": policy, "metadata": metadata})
        await send(http, "POST", f"{path}/events", {"events": [{"type": "system.prompt", "content": SCRIPT}]})
        for number, text in enumerate(TEXTS):
            await send(http, "POST", f"{path}/events", {"events": turn(number, text)})
            await send(http, "POST", f"{path}/context", {})
        long = {"type": "tool.result", "call_id": "long", "content": SCRIPT + "x" * LINE_CHARS}
        asked = {"type": "tool.call", "call_id": "long", "tool": SCRIPT, "arguments": {SCRIPT: SCRIPT}}
        await send(http, "POST", f"{path}/events", {"events": [asked, long]})
        await send(http, "PUT", f"{path}/layers/sources", {"content": SCRIPT})
        await send(http, "POST", f"{path}/compactions", {"wait_ms": 30_000, "focus": SCRIPT})
        call = await send(http, "POST", f"{path}/context", {})
        error = {"status": 500, "message": "".join(TEXTS[:6])}
        await send(http, "POST", f"{path}/calls/{call['call_id']}/outcome", {"error": error})


def turn(number: int, text: str) -> list[dict[str, Any]]:
    """Return the events of a turn in which the user, the model and a tool say this text."""
    words, name = f"{text} {'and so on ' * 60}", named(text)
    called = {"type": "tool.call", "call_id": f"c{number}{name}", "tool": name, "arguments": {"path": text, name: text}}
    return [
        {"type": "user.message", "content": text, "author": name},
        called,
        {"type": "tool.result", "call_id": called["call_id"], "content": words, "path": name},
        {"type": "agent.note", "content": text, "path": name, "pinned": number == 0},
        {"type": "assistant.message", "content": words},
    ]


def named(text: str) -> str:
    """Return the beginning of a text as a name, which holds neither NUL nor lone surrogates."""
    return text.replace("\x00", "").encode(errors="ignore").decode()[:60]


async def send(http: httpx.AsyncClient, method: str, path: str, body: Any) -> Any:
    """Send JSON, in which surrogates are escaped, and return the response's."""
    content = json.dumps(body)
    answer = await http.request(method, path, content=content, headers={"Content-Type": "application/json"})
    assert answer.is_success, (path, answer.text, str(body)[:300])
    return answer.json()
