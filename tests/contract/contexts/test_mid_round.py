"""Contexts requested while a round is incomplete only grow, in every format (I5)."""

from typing import Any

import httpx
import pytest

from tests.support.validators import check_anthropic, check_gemini, check_openai, check_openai_responses

pytestmark = pytest.mark.wing("audit")

CHECKS = {
    "openai": check_openai,
    "openai-responses": check_openai_responses,
    "anthropic": check_anthropic,
    "gemini": check_gemini,
}
EVENTS: list[dict[str, Any]] = [
    {"type": "user.message", "content": "Compare the two files."},
    {"type": "tool.call", "call_id": "a", "tool": "read", "arguments": {"path": "a"}},
    {"type": "assistant.message", "content": "And the other one."},
    {"type": "tool.call", "call_id": "b", "tool": "read", "arguments": {"path": "b"}},
    {"type": "assistant.message", "content": "Both, then."},
    {"type": "tool.result", "call_id": "b", "content": "two"},
    {"type": "tool.result", "call_id": "a", "content": "one"},
    {"type": "assistant.message", "content": "They differ."},
]


SPEAKERS = ("user", "assistant", "model")
RESULTS = ("tool_result", "function_call_output", "functionResponse")


def settled_parts(request: dict[str, Any], waiting: set[str]) -> list[Any]:
    """Return the messages, items or blocks before the first result of a waiting call, without cache markers."""
    found: list[Any] = []
    for message in request.get("messages", request.get("input", request.get("contents", []))):
        parts = message.get("content", message.get("parts")) if message.get("role") in SPEAKERS else None
        blocks = [(message["role"], unmarked(part)) for part in parts] if isinstance(parts, list) else [message]
        for block in blocks:
            ids = str(block[1] if isinstance(block, tuple) else block)
            is_result = any(kind in ids for kind in RESULTS) or message.get("role") == "tool"
            if is_result and any(f"'{one}'" in ids for one in waiting):
                return found
            found.append(block)
    return found


def unmarked(part: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in part.items() if name != "cache_control"}


@pytest.mark.parametrize("form", CHECKS)
async def test_the_request_before_a_waiting_call_only_grows(client: httpx.AsyncClient, form: str) -> None:
    await client.post("/v1/sessions", json={"id": "s"})
    earlier: list[Any] = []
    epochs, waiting = set(), set()
    for event in EVENTS:
        if event["type"] == "tool.call":
            waiting.add(event["call_id"])
        elif event["type"] == "tool.result":
            waiting.discard(event["call_id"])
        (await client.post("/v1/sessions/s/events", json={"events": [event]})).raise_for_status()
        answer = (await client.get("/v1/sessions/s/context", params={"format": form})).json()
        CHECKS[form](answer["request"])
        now = settled_parts(answer["request"], waiting)
        assert now[: len(earlier)] == earlier, (event, earlier, now)
        epochs.add(answer["epoch"])
        again = await client.get(f"/v1/sessions/s/calls/{answer['call_id']}/context")
        assert again.json()["reproduced"] is True
        earlier = now
    assert len(epochs) == 1
