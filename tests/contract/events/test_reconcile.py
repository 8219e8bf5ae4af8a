"""Clients that send their complete messages with every call: the events appended, and the line they go to."""

import json
from typing import Any

import httpx
import pytest

from app.runtime.settings import Settings
from tests.conftest import serving
from tests.contract.lines.test_lines import append_messages, ask, event_contents
from tests.support.requesting import Loopback
from tests.support.statements import ServerLog

Json = dict[str, Any]


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def answer(text: str) -> Json:
    return {"role": "assistant", "content": text}


def calls(*ids: str, text: str | None = None) -> Json:
    made = [
        {"id": i, "type": "function", "function": {"name": "look", "arguments": '{"at": "' + i + '"}'}} for i in ids
    ]
    return {"role": "assistant", "content": text, "tool_calls": made}


def result(call_id: str, text: str) -> Json:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


async def reconcile(
    http: httpx.AsyncClient, messages: list[Json], status: int = 200, sid: str = "s", **more: Any
) -> Json:
    made: Json = await ask(http, "POST", f"{sid}/context", {"messages": messages, **more}, status)
    return made


async def log(http: httpx.AsyncClient, sid: str = "s") -> list[tuple[str, Any]]:
    events = (await ask(http, "GET", f"{sid}/events"))["items"]
    return [(event["type"], event.get("content") or event.get("call_id")) for event in events]


CONVERSATION = [user("Where?"), calls("a", "b", text="I look."), result("a", "not here"), result("b", "here")]


async def test_new_messages_are_appended_and_a_retry_appends_nothing(client: httpx.AsyncClient) -> None:
    first = await reconcile(client, CONVERSATION[:1])
    assert (first["session"], first["line"], first["head"]) == ("s", "s@line.1", 1)
    assert [(one["index"], one["seq"], one["turn"]) for one in first["appended"]] == [(0, 1, 1)]
    second = await reconcile(client, CONVERSATION)
    assert [(one["index"], one["seq"]) for one in second["appended"]] == [(1, 2), (1, 3), (1, 4), (2, 5), (3, 6)]
    assert second["request"]["messages"] == CONVERSATION
    again = await reconcile(client, CONVERSATION)
    assert (again["appended"], again["head"], again["sha256"]) == ([], 6, second["sha256"])
    assert again["call_id"] != second["call_id"]


async def test_a_new_session_is_counted_for_the_model_of_its_first_request(client: httpx.AsyncClient) -> None:
    """The session's estimator and settings are those of a session created for this model."""
    text = "cobalt meadow engine lantern orbit granite violet ribbon " * 40
    await ask(client, "PUT", "named", {"model": "gpt-4o"}, 201)
    named = await reconcile(client, [user(text)], sid="named", model="gpt-4o")
    new = await reconcile(client, [user(text)], sid="new", model="gpt-4o")
    assert [one["tokens"] for one in new["appended"]] == [one["tokens"] for one in named["appended"]]
    await reconcile(client, [user(text), answer("Yes."), user("And?")], sid="new", model="claude-sonnet-5")
    settings = ("model", "estimator", "window_assumed")
    of_new, of_named = [await ask(client, "GET", sid) for sid in ("new", "named")]
    assert [of_new[name] for name in settings] == [of_named[name] for name in settings]
    assert of_new["model"] == "gpt-4o"


async def test_appended_events_are_recognized(client: httpx.AsyncClient) -> None:
    """Neutral events are recognized too, and a reply that was logged before it was sent with the rest."""
    await append_messages(client, "s", "Where?")
    call = {"type": "tool.call", "tool": "look", "arguments": {"at": "a"}, "call_id": "a"}
    events = [
        {"type": "assistant.message", "content": "I look."},
        call,
        {**call, "call_id": "b", "arguments": {"at": "b"}},
    ]
    await ask(client, "POST", "s/events", {"events": events}, 201)
    made = await reconcile(client, CONVERSATION)
    assert [one["index"] for one in made["appended"]] == [2, 3]
    await ask(client, "POST", "s/messages", {"format": "openai", "messages": [answer("Here.")]}, 201)
    made = await reconcile(client, [*CONVERSATION, answer("Here."), user("Thanks.")])
    assert [one["index"] for one in made["appended"]] == [5]
    assert made["line"] == "s@line.1"


async def test_an_edited_history_continues_on_a_new_line_and_the_old_line_can_become_current_again(
    client: httpx.AsyncClient,
) -> None:
    await reconcile(client, [user("one"), answer("two"), user("three")])
    edited = await reconcile(client, [user("one"), answer("two"), user("else")])
    assert (edited["line"], [one["index"] for one in edited["appended"]]) == ("s@line.2", [2])
    assert await event_contents(client, "s") == ["one", "two", "else"]
    assert (await ask(client, "GET", "s"))["parent"] == {"id": "s@line.1", "at": 2}
    back = await reconcile(client, [user("one"), answer("two"), user("three"), answer("four")])
    assert (back["line"], [one["index"] for one in back["appended"]]) == ("s@line.1", [3])
    assert await event_contents(client, "s") == ["one", "two", "three", "four"]
    assert [one["current"] for one in (await ask(client, "GET", "s/lines"))["items"]] == [True, False]


async def test_a_regenerated_reply_continues_from_before_the_first_one(client: httpx.AsyncClient) -> None:
    asked = [user("one"), answer("two"), user("three")]
    await reconcile(client, asked)
    await ask(client, "POST", "s/messages", {"format": "openai", "messages": [answer("four")]}, 201)
    again = await reconcile(client, asked)
    assert (again["line"], again["head"], again["appended"]) == ("s@line.2", 3, [])
    await ask(client, "POST", "s/messages", {"format": "openai", "messages": [answer("another four")]}, 201)
    assert await event_contents(client, "s") == ["one", "two", "three", "another four"]
    assert await event_contents(client, "s@line.1") == ["one", "two", "three", "four"]


async def test_a_clients_compaction_and_a_sub_agent_get_their_own_lines(client: httpx.AsyncClient) -> None:
    main = [user("one"), answer("two"), user("three")]
    await reconcile(client, main)
    helper = await reconcile(client, [user("Find a title.")])
    assert (helper["line"], helper["request"]["messages"]) == ("s@line.2", [user("Find a title.")])
    assert (await ask(client, "GET", "s"))["parent"] is None
    main.append(answer("four"))
    assert (await reconcile(client, main))["line"] == "s@line.1"
    compacted = [user("So far: one to four."), user("five")]
    assert (await reconcile(client, compacted))["line"] == "s@line.3"
    compacted.append(answer("six"))
    after = await reconcile(client, compacted)
    assert (after["line"], [one["index"] for one in after["appended"]]) == ("s@line.3", [2])
    assert len((await ask(client, "GET", "s/lines"))["items"]) == 3


async def test_a_conversation_continues_on_the_line_that_forks_at_its_end(client: httpx.AsyncClient) -> None:
    asked = [user("one"), answer("two"), user("three")]
    await reconcile(client, asked)
    await ask(client, "POST", "s/rewind", {"to": 2})
    await reconcile(client, [user("aside")])
    back = await reconcile(client, [*asked[:2], user("else")])
    assert (back["line"], [one["index"] for one in back["appended"]]) == ("s@line.2", [2])


async def test_one_conversation_in_four_formats_is_one_line(client: httpx.AsyncClient) -> None:
    await reconcile(client, CONVERSATION)
    made = await reconcile(
        client,
        [
            user("Where?"),
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": "x"},
                {"type": "text", "text": "I look.", "cache_control": {"type": "ephemeral"}},
                {"type": "tool_use", "id": "a", "name": "look", "input": {"at": "a"}},
                {"type": "tool_use", "id": "b", "name": "look", "input": {"at": "b"}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "not here"}]},
                {"type": "tool_result", "tool_use_id": "b", "content": "here"},
            ]},
        ],
        format="anthropic",
    )  # fmt: skip
    assert (made["line"], made["appended"]) == ("s@line.1", [])
    made = await reconcile(
        client,
        [
            user("Where?"),
            {"type": "reasoning", "id": "r", "summary": []},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
            {"type": "function_call", "call_id": "a", "name": "look", "arguments": '{ "at": "a" }', "status": "done"},
            {"type": "function_call", "call_id": "b", "name": "look", "arguments": '{"at":"b"}'},
            {"type": "function_call_output", "call_id": "a", "output": "not here"},
            {"type": "function_call_output", "call_id": "b", "output": "here"},
            {"role": "user", "content": [{"type": "input_text", "text": "Thanks."}]},
        ],
        format="openai-responses",
    )  # fmt: skip
    assert (made["line"], [one["index"] for one in made["appended"]]) == ("s@line.1", [7])
    parts = [{"functionCall": {"id": i, "name": "look", "args": {"at": i}}} for i in ("a", "b")]
    said_so = [
        {"functionResponse": {"id": i, "name": "look", "response": {"output": text}}}
        for i, text in (("a", "not here"), ("b", "here"))
    ]
    contents = [
        {"role": "user", "parts": [{"text": "Where?"}]},
        {"role": "model", "parts": [{"text": "hm", "thought": True}, {"text": "I look."}, *parts]},
        {"role": "user", "parts": said_so},
        {"role": "user", "parts": [{"text": "Thanks."}]},
    ]
    made = await reconcile(client, contents, format="gemini", system=[{"text": "Help."}])
    assert (made["line"], len(made["appended"])) == ("s@line.1", 1)
    assert made["request"]["systemInstruction"] == {"parts": [{"text": "Help."}]}


async def test_another_system_prompt_or_other_tools_never_leave_the_line(client: httpx.AsyncClient) -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    system = {"role": "system", "content": "It is Monday."}
    await reconcile(client, [system, *CONVERSATION], tools=tools)
    assert (await log(client))[:2] == [("system.prompt", "It is Monday."), ("tools", tools)]
    same = await reconcile(client, [system, *CONVERSATION], tools=[dict(reversed(tools[0].items()))])
    assert same["appended"] == []
    assert (await reconcile(client, CONVERSATION))["appended"] == []
    for day in ("Tuesday", "Wednesday", "Thursday"):
        turned = {"role": "system", "content": f"It is {day}."}
        made = await reconcile(client, [turned, *CONVERSATION], tools=tools)
        assert [one["index"] for one in made["appended"]] == [0]
        assert made["request"] == {"messages": [turned, *CONVERSATION], "tools": tools}
    more = [*tools, {"type": "function", "function": {"name": "go", "parameters": {"type": "object"}}}]
    made = await reconcile(client, [turned, *CONVERSATION, answer("So.")], tools=more)
    assert [one["index"] for one in made["appended"]] == [None, 5]
    assert made["request"] == {"messages": [turned, *CONVERSATION, answer("So.")], "tools": more}


async def test_prompts_without_conversation_are_replaced_by_new_ones(client: httpx.AsyncClient) -> None:
    tools = [{"name": "look", "input_schema": {"type": "object"}}]
    await ask(client, "POST", "s/events", {"events": [
        {"type": "system.prompt", "content": "Old."}, {"type": "tools", "content": tools},
    ]}, 201)  # fmt: skip
    made = await reconcile(client, [user("Hi.")], format="anthropic", system=[{"type": "text", "text": "New."}])
    assert [part["text"] for part in made["request"]["system"]] == ["New."]
    assert made["request"]["tools"][0]["name"] == "look"


async def test_agents_that_share_a_beginning_and_differ_in_their_prompts_keep_their_conversations(
    client: httpx.AsyncClient,
) -> None:
    """A line that branched after a user's message and has only a prompt of its own still shows that message."""
    left, right = ({"role": "system", "content": f"You are {name}."} for name in ("left", "right"))
    await reconcile(client, [left, CONVERSATION[0]])
    await reconcile(client, [left, *CONVERSATION])
    await reconcile(client, [right, CONVERSATION[0]])
    longer = [*CONVERSATION, calls("c"), result("c", "there")]
    again = await reconcile(client, [left, *longer])
    assert again["request"]["messages"] == [left, *longer]
    other = await reconcile(client, [right, CONVERSATION[0], calls("d"), result("d", "elsewhere")])
    assert other["request"]["messages"] == [right, CONVERSATION[0], calls("d"), result("d", "elsewhere")]
    assert (await reconcile(client, [left, *longer]))["appended"] == []


@pytest.mark.wing("compare")
async def test_an_invalid_message_is_an_error_with_its_index(client: httpx.AsyncClient) -> None:
    wrong = await reconcile(client, [user("one"), {"role": "nobody"}], 422)
    assert (wrong["type"], wrong["index"]) == ("/problems/invalid-message", 1)
    await ask(client, "GET", "s", status=404)
    assert (await reconcile(client, [user("one")], 422, at=1))["field"] == "at"
    assert (await reconcile(client, [user("one")], 422, sid="s@line.1"))["field"] == "sid"
    assert (await reconcile(client, [user("one")], 422, format="blocks"))["field"] == "format"
    assert (await ask(client, "POST", "s/context", {"tools": []}, 422))["field"] == "tools"
    assert (await ask(client, "POST", "s/context:preview", {"messages": CONVERSATION}, 422))["field"] == "messages"
    for nothing in ([], [{"role": "system", "content": "Be brief."}], [answer("")]):
        assert (await reconcile(client, nothing, 422))["field"] == "messages"


async def test_malformed_messages_never_cause_a_server_error(client: httpx.AsyncClient) -> None:
    odd: list[tuple[str, list[Json]]] = [
        ("openai", [user("one"), {"role": "assistant", "content": None, "refusal": {"not": "text"}}]),
        ("openai", [{"role": "user", "content": [{"type": "text", "text": 7}, {"no": "type"}]}]),
        ("openai", [user("\ud800 and \x00"), {"role": "assistant", "content": "\x00"}]),
        ("openai-responses", [user("one"), {"type": "shell_call", "call_id": "a", "id": "b", "status": "completed"}]),
        (
            "openai-responses",
            [
                {"type": "shell_call", "call_id": "a", "action": {}},
                {"type": "shell_call_output", "call_id": "a", "output": [{"type": ["list"]}]},
            ],
        ),
        ("anthropic", [{"role": "user", "content": [{"type": "image", "source": None}]}]),
    ]
    for number, (form, messages) in enumerate(odd):
        path = f"/v1/sessions/odd{number}/context"
        for _ in range(2):
            body = json.dumps({"messages": messages, "format": form})
            made = await client.post(path, content=body, headers={"Content-Type": "application/json"})
            assert made.status_code in (200, 422), made.text
            assert made.status_code == 422 or made.json()["line"] == f"odd{number}@line.1"


async def test_the_append_stays_if_the_context_is_infeasible(client: httpx.AsyncClient) -> None:
    long = [user("word " * 5_000)]
    wrong = await reconcile(client, long, 422, max_tokens=1_000)
    assert wrong["type"] == "/problems/context-infeasible"
    made = await reconcile(client, long, max_tokens=20_000)
    assert (made["appended"], made["head"]) == ([], 1)


async def test_a_retry_after_an_overflow_continues_with_its_messages(client: httpx.AsyncClient) -> None:
    made = await reconcile(client, CONVERSATION)
    await reconcile(client, [user("aside")])
    await reconcile(client, CONVERSATION)
    error = {"error": {"status": 400, "message": "This model's maximum context length is 8000 tokens, however 9000"}}
    verdict = await ask(client, "POST", f"s/calls/{made['call_id']}/outcome", error)
    assert verdict["overflow"] is True
    again = await reconcile(client, CONVERSATION, retry_of=made["call_id"])
    assert (again["line"], again["appended"]) == ("s@line.1", [])


@pytest.mark.usefixtures("worker")
async def test_the_retry_an_overflow_recommends_works_with_and_without_messages(client: httpx.AsyncClient) -> None:
    """The call was made on the session's second line; the path names the session whichever address reports the call."""
    await reconcile(client, [user("aside")])
    error = {"error": {"status": 400, "message": "This model's maximum context length is 8000 tokens, however 9000"}}
    for address in ("s", "s@line.2"):
        made = await reconcile(client, CONVERSATION)
        verdict = await ask(client, "POST", f"{address}/calls/{made['call_id']}/outcome", error)
        following = verdict["next"]
        assert (made["line"], following["path"]) == ("s@line.2", "/v1/sessions/s/context")
        await reconcile(client, [user("aside")])
        for more in ({}, {"messages": CONVERSATION}):
            again = await client.request(following["method"], following["path"], json={**following["body"], **more})
            assert (again.status_code, again.json()["line"]) == (200, "s@line.2"), again.text


async def test_continuing_a_conversation_executes_four_statements(database_url: str) -> None:
    """The log is not read: the line's end is in its row, and the view is cached."""
    log = await ServerLog.begin(database_url)
    async with (
        serving(Settings(), database_url) as url,
        httpx.AsyncClient(base_url=url, timeout=30, transport=Loopback()) as http,
    ):
        for _ in range(2):
            await reconcile(http, CONVERSATION, system="You help.")
        before = len(log.statements())
        made = await reconcile(http, [*CONVERSATION, answer("Here."), user("Thanks.")], system="You help.")
        assert [one["index"] for one in made["appended"]] == [4, 5]
        asked = [one.sql for one in log.statements()[before:]]
    said = [sql.split()[0] for sql in asked if not sql.startswith(("BEGIN", "COMMIT", "SET"))]
    assert said == ["SELECT", "WITH", "WITH", "INSERT"], asked


@pytest.mark.parametrize("count", [1, 1_500])
async def test_a_long_history_comes_in_one_request(client: httpx.AsyncClient, count: int) -> None:
    messages = [turn for n in range(count) for turn in (user(f"ask {n}"), answer(f"say {n}"))]
    made = await reconcile(client, messages)
    assert len(made["appended"]) == 2 * count == made["head"]
    assert (await reconcile(client, [*messages, user("on")]))["appended"][0]["index"] == 2 * count
