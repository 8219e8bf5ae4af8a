"""A coding agent's session for the pictures: it reads and edits modules of this repository."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx2

ROOT: Final = Path(__file__).parents[2]
SYSTEM: Final = (
    "You are a careful engineer. Read before you edit, never change a test to make it pass, run the tests. " * 12
)
TOOLS: Final = [
    {
        "name": name,
        "description": f"{name} in the repository. " * 20,
        "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}},
    }
    for name in ("read_file", "edit_file", "run_tests", "search")
]
QUESTIONS: Final = (
    "Why does the planner keep two results of the same file?",
    "Rename the reason of a stub, in all reducers.",
    "The expiry of a cache should come from the policy; find the place where it is decided.",
    "Write a test for a log that begins with a tool result.",
    "Which modules know the size of a window?",
)
MODULES_PER_QUESTION: Final = 9
RESULT_CHARS: Final = 9_000
POLICY: Final = {"window_tokens": 60_000, "reserve_tokens": 8_000, "injection_reserve_tokens": 1_000}
MODEL: Final = "claude-sonnet-4-5"
POLL_SECONDS: Final = 0.05
CACHED_SHARE, OUTPUT_TOKENS, LATENCY_MS = 0.92, 420, 3_100


def steps() -> Iterator[list[dict[str, Any]]]:
    """Yield the events before each call of the session."""
    modules = sorted((ROOT / "app" / "core" / "plan").rglob("*.py"), key=lambda file: -file.stat().st_size)
    yield [{"type": "system.prompt", "content": SYSTEM}, {"type": "tools", "content": TOOLS}]
    number = 0
    for question in QUESTIONS:
        yield [{"type": "user.message", "content": question}]
        for _ in range(MODULES_PER_QUESTION):
            file = modules[number % len(modules)]
            name = str(file.relative_to(ROOT))
            text = file.read_text(encoding="utf-8")
            yield _used(f"read{number}", "read_file", {"path": name}, text[:RESULT_CHARS])
            if number % 3 == 2:
                lines = text.splitlines()
                edit = {"path": name, "old": lines[0], "new": f"{lines[0]}  # in review"}
                yield _used(f"edit{number}", "edit_file", edit, "1 line was replaced")
            number += 1
        said = f"{len(QUESTIONS) * 7} passed in 2.41s\n" + "tests/unit/plan ........................ [100%]\n" * 8
        yield _used(f"tests{number}", "run_tests", {"path": "tests/unit/plan"}, said)
        yield [{"type": "assistant.message", "content": f"Done: {question} {'I looked at each module in turn. ' * 12}"}]


def _used(call_id: str, tool: str, arguments: dict[str, Any], result: str) -> list[dict[str, Any]]:
    call = {"type": "tool.call", "call_id": call_id, "tool": tool, "arguments": arguments}
    return [call, {"type": "tool.result", "call_id": call_id, "content": result, "path": arguments["path"]}]


async def play(http: httpx2.AsyncClient, session: str) -> None:
    """Play the session on a server: a context for each step, with the outcome of the call before."""
    await _sent(http, "PUT", f"/v1/sessions/{session}", {"policy": POLICY, "model": MODEL})
    outcome: dict[str, Any] = {}
    for events in steps():
        body = {"append": {"events": events}, "format": "anthropic", **outcome}
        if events[-1]["type"] in ("tools", "assistant.message"):
            await _sent(http, "POST", f"/v1/sessions/{session}/events", {"events": events})
            continue
        made = await _sent(http, "POST", f"/v1/sessions/{session}/context", body)
        learned = made["tokens"]["calibration"]
        sent = round(made["tokens"]["estimate"] / (learned["ratio"] if learned else 1))
        usage = {"input_tokens": sent, "cache_read_tokens": round(sent * CACHED_SHARE), "output_tokens": OUTPUT_TOKENS}
        await _settled(http, session)
        outcome = {"outcome": {"call_id": made["call_id"], "usage": usage, "latency_ms": LATENCY_MS}}


async def _settled(http: httpx2.AsyncClient, session: str) -> None:
    """Wait until no summary is being written, so that each run of the command shows the same session."""
    while True:
        runs = (await http.get(f"/v1/sessions/{session}/compactions", params={"limit": 1})).json()["items"]
        if not runs or runs[0]["state"] not in ("scheduled", "running"):
            return
        await asyncio.sleep(POLL_SECONDS)


async def _sent(http: httpx2.AsyncClient, method: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = await http.request(method, path, json=body)
    if not answer.is_success:
        raise SystemExit(f"{path}: {answer.text}")
    found: dict[str, Any] = answer.json()
    return found
