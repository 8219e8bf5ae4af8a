"""A tool agent of forty calls in a quarter of the required window, with code from the README only."""

import asyncio
import json
import re
from typing import Any

import pytest
from openai import OpenAI
from palimpsest import Palimpsest

from tests.client.wire import TOO_LONG, Provider, ScriptedError, ScriptedReply, provider

pytestmark = [pytest.mark.wing("audit"), pytest.mark.wing("recall")]

ORDERS = 40
WINDOW = 8_000
LOOKUP = {
    "type": "function",
    "function": {
        "name": "lookup",
        "description": "All that is known of an order.",
        "parameters": {"type": "object", "properties": {"order": {"type": "integer"}}, "required": ["order"]},
    },
}


def lookup(order: int) -> str:
    lines = [
        f"Line {n} of order {order}: the goods were weighed, wrapped and put on shelf {n * order}." for n in range(50)
    ]
    return "\n".join([*lines[:25], f"The gate word of order {order} is {order * 7 % 101}.", *lines[25:]])


def diligent(body: dict[str, Any]) -> ScriptedReply | ScriptedError:
    """Look up the orders in turn, then return the gate word of the third, recalling it if it is not visible."""
    if len(json.dumps(body)) / 3.5 > WINDOW:
        return TOO_LONG
    text = json.dumps(body["messages"])
    looked = [int(one) for one in re.findall(r'"arguments": "\{\\"order\\": (\d+)\}"', text)]
    last = max(looked, default=0)
    if last < ORDERS:
        return ScriptedReply(calls=[("lookup", {"order": last + 1})])
    seen = re.search(r"gate word of order 3 is (\d+)", text)
    return (
        ScriptedReply(f"It is {seen[1]}.")
        if seen
        else ScriptedReply(calls=[("recall", {"query": "gate word of order 3"})])
    )


def agent(question: str) -> tuple[str, int]:
    with OpenAI() as openai, Palimpsest() as palimpsest:
        memory = palimpsest.session("orders", model="gpt-4o", format="openai", max_tokens=WINDOW)
        memory.system("You look up orders, one after the other.")
        memory.tools([LOOKUP])
        memory.user(question)
        while True:
            with memory.call() as call:
                reply = call.send(openai.chat.completions.create)
            if not reply.tool_calls:
                break
            memory.results(lookup(**tool_call.arguments) for tool_call in reply.tool_calls)
        return reply.content, call.left_out.tokens


async def test_forty_calls_in_a_quarter_of_their_window(
    server: str, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    models: Provider
    async with provider(diligent) as models:
        monkeypatch.setenv("PALIMPSEST_URL", server)
        monkeypatch.setenv("OPENAI_BASE_URL", f"{models.url}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", "a key")
        said, left_out = await asyncio.to_thread(agent, "Look up all orders, then tell the gate word of order 3.")
    session = (await client.get("/v1/sessions/orders")).json()
    calls = (await client.get("/v1/sessions/orders/calls", params={"limit": 1000})).json()["items"]
    assert said == "It is 21."
    assert session["tokens"]["log"] >= 4 * WINDOW
    assert max(len(json.dumps(body)) / 3.5 for body in models.requests) <= WINDOW
    assert left_out > 2 * WINDOW
    assert not any(call["overflow"] for call in calls)
    results = (await client.get("/v1/sessions/orders/events", params={"limit": 1000})).json()["items"]
    assert sum(event["type"] == "tool.result" for event in results) == ORDERS + 1  # one of them a recall
