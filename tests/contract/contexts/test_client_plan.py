"""Client plans: applied to the client's own messages they give the content of the request."""

from typing import Any

import httpx
import pytest

from tests.contract.events.test_reconcile import CONVERSATION, answer, calls, reconcile, result, user
from tests.contract.lines.test_lines import ask
from tests.support.client_plans import apply_plan, request_pieces

Json = dict[str, Any]
LONG = "The parser reads its configuration from a folder of its own and writes what it found to disk. " * 12


def rounds(count: int) -> list[Json]:
    """Return a long conversation of a chat client with a tool."""
    messages: list[Json] = [{"role": "system", "content": "You help."}, user("Look at all of it. " + LONG)]
    for n in range(count):
        messages += [calls(f"x{n}", f"y{n}", text=f"Now number {n}."), result(f"x{n}", f"{n}: {LONG}")]
        messages += [result(f"y{n}", f"{n} again: {LONG}")]
        if n % 3 == 2:
            messages += [answer(f"Done with {n}. {LONG}"), user(f"Go on after {n}.")]
    return messages


def in_anthropic(messages: list[Json]) -> list[Json]:
    """Return the conversation in Anthropic's format."""
    found: list[Json] = []
    for one in messages:
        if one["role"] == "system":
            continue
        if one["role"] == "tool":
            part = {"type": "tool_result", "tool_use_id": one["tool_call_id"], "content": one["content"]}
            if found[-1]["role"] == "user":
                found[-1]["content"].append(part)
            else:
                found.append({"role": "user", "content": [part]})
            continue
        parts: list[Json] = [{"type": "text", "text": one["content"]}]
        for call in one.get("tool_calls", ()):
            at = {"at": call["id"]}
            parts.append({"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": at})
        found.append({"role": one["role"], "content": parts})
    return found


def in_responses(messages: list[Json]) -> list[Json]:
    """Return the conversation as Responses items, with the reasoning of each round."""
    found: list[Json] = []
    for one in messages:
        if one["role"] == "tool":
            found.append({"type": "function_call_output", "call_id": one["tool_call_id"], "output": one["content"]})
            continue
        if one["role"] == "assistant":
            found.append({"type": "reasoning", "id": f"r{len(found)}", "summary": []})
        found.append({"type": "message", "role": one["role"], "content": one["content"]})
        for call in one.get("tool_calls", ()):
            made = {"name": "look", "arguments": call["function"]["arguments"]}
            found.append({"type": "function_call", "call_id": call["id"], **made})
    return found


SHAPES = {"openai": list, "anthropic": in_anthropic, "openai-responses": in_responses}
POLICIES: dict[str, Json] = {
    "stubs": {"retention": {"keep_last": 2}},
    "drops": {"summarize": {"enabled": False}, "retention": {"keep_last": None, "superseded": False}},
    "clears": {"retention": {"keep_last": 1}, "summarize": {"enabled": False}},
}


@pytest.mark.parametrize("form", SHAPES)
@pytest.mark.parametrize("policy", POLICIES)
async def test_a_plan_applied_to_the_messages_equals_the_request(
    client: httpx.AsyncClient, form: str, policy: str
) -> None:
    await ask(client, "PUT", "s", {"policy": {"reserve_tokens": 0, **POLICIES[policy]}}, 201)
    messages = rounds(18)
    actions = set()
    for end in (5, 6, 20, 41, 42, len(messages)):
        own = SHAPES[form](messages[:end])
        made = await reconcile(
            client, own, format=form, max_tokens=6_000, injections=[{"name": "time", "content": "It is noon."}]
        )
        assert made["line"] == "s@line.1"
        assert apply_plan(form, own, made) == request_pieces(form, made["request"])
        actions |= {one["action"] for one in made["plan"]}
    assert "keep" in actions
    assert actions & {"replace", "drop"}


@pytest.mark.parametrize("form", SHAPES)
async def test_summaries_are_inserted_in_place_of_their_events(client: httpx.AsyncClient, form: str) -> None:
    await ask(client, "PUT", "s", {"policy": {"reserve_tokens": 0, "retention": {"keep_last": None}}}, 201)
    own = SHAPES[form](rounds(18))
    made = await reconcile(client, own, format=form, max_tokens=6_000, wait_ms=1)
    summaries = [one for one in made["inserted"] if one["kind"] == "summary"]
    assert [one["id"] for one in summaries] == [made["summaries"][-1]["id"]]
    assert apply_plan(form, own, made) == request_pieces(form, made["request"])


async def test_content_unknown_to_the_client_is_inserted_in_log_order(client: httpx.AsyncClient) -> None:
    await reconcile(client, CONVERSATION[:3])
    await ask(client, "POST", "s/events", {"events": [{"type": "agent.note", "content": "Mind the gap."}]}, 201)
    await ask(client, "PUT", "s/layers/sources", {"content": "a.py"})
    more = [*CONVERSATION[:3], user("And?")]
    made = await reconcile(client, more)
    found = [(one["before"], one["kind"], one["role"], one.get("call_id")) for one in made["inserted"]]
    assert found == [(3, "pending", "tool", "b"), (3, "note", "user", None), (4, "layer", "user", None)]
    assert apply_plan("openai", more, made) == request_pieces("openai", made["request"])
    assert [one["action"] for one in made["plan"]] == ["keep"] * 4
    assert [one["seqs"] for one in made["plan"]] == [[1], [2, 3, 4], [5], [7]]


async def test_a_redacted_event_is_replaced(client: httpx.AsyncClient) -> None:
    await reconcile(client, CONVERSATION)
    await ask(client, "DELETE", "s/events/5", status=204)
    made = await reconcile(client, CONVERSATION)
    assert [one["action"] for one in made["plan"]] == ["keep", "keep", "replace", "keep"]
    assert made["appended"] == []
    assert apply_plan("openai", CONVERSATION, made) == request_pieces("openai", made["request"])
