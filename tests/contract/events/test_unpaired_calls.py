"""Complete conversations that a log could not hold as sent: repeated ids, missing calls, unknown items."""

import json
from typing import Any

import httpx
import pytest

from tests.contract.events.test_reconcile import answer, calls, reconcile, result, user
from tests.contract.lines.test_lines import ask
from tests.support.validators import check_anthropic, check_gemini, check_openai, check_openai_responses

Json = dict[str, Any]
CHECKS = {
    "openai": check_openai,
    "anthropic": check_anthropic,
    "openai-responses": check_openai_responses,
    "gemini": check_gemini,
}
LISTS = {
    "an id that is open twice": [user("hi"), calls("x"), calls("x"), result("x", "1"), result("x", "2")],
    "twice in one message": [user("hi"), calls("x", "x"), result("x", "1"), result("x", "2")],
    "only one answered": [user("hi"), calls("x"), calls("x"), result("x", "1"), user("so?")],
    "a result alone": [user("hi"), result("x", "1"), user("so?")],
    "a result first": [result("x", "1"), user("so?")],
    "a second result": [user("hi"), calls("x"), result("x", "1"), result("x", "2"), answer("done")],
    "a call asked again after a pause": [user("hi"), calls("x"), user("wait"), calls("x"), result("x", "1")],
}


@pytest.mark.wing("audit")
@pytest.mark.parametrize("name", LISTS)
async def test_unpaired_calls_and_results_are_accepted_and_valid_in_every_format(
    client: httpx.AsyncClient, name: str
) -> None:
    messages = LISTS[name]
    for count in range(1, len(messages) + 1):  # the client's list grows; a new process parses all of it
        made = await reconcile(client, messages[:count])
        check_openai(made["request"])
    assert made["line"] == "s@line.1"
    assert [step["action"] for step in made["plan"]] == ["keep"] * len(messages)
    assert (await reconcile(client, messages))["appended"] == []
    assert (await reconcile(client, messages, sid="at-once"))["sha256"]
    for form, check in CHECKS.items():
        check((await ask(client, "GET", f"s/context?format={form}"))["request"])
    assert (await ask(client, "GET", "s/coverage"))["ok"]
    again = await ask(client, "GET", f"s/calls/{made['call_id']}/context")
    assert again["request"] == made["request"]


async def test_the_log_marks_ids_and_calls_it_added(client: httpx.AsyncClient) -> None:
    await reconcile(client, [user("hi"), calls("x", "x"), result("x", "1"), result("x", "2"), result("y", "3")])
    events = (await ask(client, "GET", "s/events"))["items"]
    of_calls = [
        (one["type"], one["call_id"], one["native"].get("call_id"))
        for one in events
        if one.get("native", {}).get("call_id")
    ]
    assert of_calls == [("tool.call", "x#2", "x"), ("tool.result", "x#2", "x")]
    [added] = [one for one in events if one.get("metadata")]
    assert (added["tool"], added["call_id"], added["metadata"]) == ("unknown_tool", "y", {"palimpsest_added": True})
    copied = [{n: v for n, v in one.items() if n not in ("seq", "turn", "tokens", "created_at")} for one in events]
    await ask(client, "POST", "copy/events", {"events": copied}, 201)


async def test_a_result_without_its_call_is_shortened_like_any_other(client: httpx.AsyncClient) -> None:
    long = json.dumps([f"row {n} of the listing" for n in range(3_000)])
    messages = [user("hi"), result("x", long)]
    for n in range(6):
        messages += [calls(f"c{n}"), result(f"c{n}", long)]
    made = await reconcile(client, messages, max_tokens=40_000)
    assert made["plan"][1]["action"] != "keep"
    assert made["plan"][1]["seqs"] == [3]
    assert "parts" not in made["plan"][1]
    check_openai(made["request"])


PROGRAM = [
    {"role": "user", "content": "hi"},
    {"type": "program", "id": "p", "call_id": "pp", "code": "await depot(1)", "fingerprint": "f"},
    {"type": "function_call", "call_id": "c", "name": "depot", "arguments": "{}",
     "caller": {"type": "program", "caller_id": "pp"}},
    {"type": "function_call_output", "call_id": "c", "output": "fine"},
    {"type": "program_output", "id": "o", "call_id": "pp", "result": "fine", "status": "completed"},
    {"type": "message", "role": "assistant", "id": "m", "status": "completed", "phase": "final_answer",
     "content": [{"type": "output_text", "text": "All fine.", "annotations": []}]},
]  # fmt: skip
ODD = [
    {"type": "comet_output", "call_id": "none", "output": {"deep": [1]}},
    {"type": "comet", "call_id": 7},
    {"type": "comet_call", "call_id": None},
    {"type": "comet_call_output"},
    {"type": "_call", "call_id": "x"},
    {"type": "_output", "call_id": "x"},
    {"type": "mcp_approval_response", "approval_request_id": "a", "approve": True},
    {"type": "comet_call", "call_id": "x" * 300},
    {"type": "additional_tools", "tools": []},
]


@pytest.mark.parametrize("way", ["messages", "context"])
async def test_items_of_unknown_kinds_are_kept_whole(client: httpx.AsyncClient, way: str) -> None:
    items = [*PROGRAM[:-1], *ODD, PROGRAM[-1]]
    body = {"format": "openai-responses", "messages": items}
    await ask(client, "POST", f"s/{way}", body, 201 if way == "messages" else 200)
    made = await ask(client, "GET", "s/context?format=openai-responses")
    assert [one for one in items if one not in made["request"]["input"]] == []
    for form, check in CHECKS.items():
        if form != "openai-responses":  # its validator does not know these items
            check((await ask(client, "GET", f"s/context?format={form}"))["request"])


def content(role: str, *parts: Json) -> Json:
    return {"role": role, "parts": list(parts)}


def gemini_rounds(count: int) -> list[Json]:
    """Return rounds of two calls of one tool and one of another, none with an id."""
    names = ("depot", "depot", "crate")
    rounds = [content("user", {"text": "hi"})]
    for n in range(count):
        rounds.append(content("model", *({"functionCall": {"name": name, "args": {"n": n}}} for name in names)))
        done = [{"functionResponse": {"name": name, "response": {"result": f"{name} {n}"}}} for name in names]
        rounds.append(content("user", *done))
    return rounds


async def test_calls_without_ids_get_ids(client: httpx.AsyncClient) -> None:
    contents = gemini_rounds(3)
    for count in range(1, len(contents) + 1):
        made = await reconcile(client, contents[:count], format="gemini")
    assert (made["line"], made["request"]["contents"]) == ("s@line.1", contents)
    events = (await ask(client, "GET", "s/events"))["items"]
    ids = [one["call_id"] for one in events if one["type"] == "tool.call"]
    assert ids == ["depot#1", "depot#2", "crate#1", "depot#3", "depot#4", "crate#2", "depot#5", "depot#6", "crate#3"]
    results = {one["call_id"]: one["content"] for one in events if one["type"] == "tool.result"}
    assert results["depot#3"] == "depot 1" and results["crate#3"] == "crate 2"
    for form, check in CHECKS.items():
        check((await ask(client, "GET", f"s/context?format={form}"))["request"])


async def test_a_log_with_shared_call_ids_continues_on_the_same_line(client: httpx.AsyncClient) -> None:
    """A log of an earlier version, or one appended content by content, numbers the calls within each content."""
    contents = gemini_rounds(3)
    for one in contents[:3]:
        await ask(client, "POST", "s/messages", {"format": "gemini", "messages": [one]}, 201)
    made = await reconcile(client, contents, format="gemini")
    assert made["line"] == "s@line.1"
    assert [one["index"] for one in made["appended"]] == [3, 3, 3, 4, 4, 4, 5, 5, 5, 6, 6, 6]
    assert made["request"]["contents"] == contents


async def test_a_response_without_an_id_answers_a_reconciled_call(client: httpx.AsyncClient) -> None:
    contents = gemini_rounds(2)
    await reconcile(client, contents[:4], format="gemini")
    body = {"format": "gemini", "messages": [contents[4]]}
    await ask(client, "POST", "s/messages", body, 201)
    made = await reconcile(client, contents, format="gemini")
    assert (made["appended"], made["line"]) == ([], "s@line.1")
    check_gemini(made["request"])
