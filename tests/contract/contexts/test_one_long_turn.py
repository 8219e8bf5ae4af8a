"""A turn far longer than the window, without a summary: events are dropped until it fits."""

import httpx

from app.core.policy.policy import DOCUMENTS
from tests.contract.contexts.test_context import append, context


async def test_large_results_at_the_start_of_a_turn_do_not_drop_its_other_rounds(client: httpx.AsyncClient) -> None:
    """Results that became stubs are subtracted once, so that most of the target stays filled."""
    await client.put("/v1/sessions/s", json={"policy": {**DOCUMENTS["pipeline"], "window_tokens": 6_000}})
    events: list[dict] = [{"type": "user.message", "content": "Begin."}]
    for number in range(60):
        words = 10_000 if number < 4 else 100
        events += [
            {"type": "tool.call", "call_id": f"c{number}", "tool": "run", "arguments": {"script": "step " * 250}},
            {"type": "tool.result", "call_id": f"c{number}", "content": f"{number}: " + "word " * words},
        ]
    await append(client, events)
    body = await context(client)
    assert body["tokens"]["estimate"] >= 0.63 * body["tokens"]["target"]
