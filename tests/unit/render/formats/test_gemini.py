"""Gemini's contents: fields that are kept or refused, and the form of other formats' events."""

import json
from typing import Any

import pytest

from app.core.errors import InvalidMessage
from app.core.log.event import Block, Kind
from app.core.render.formats import FORMATS
from app.core.render.formats.gemini import UNSIGNED
from tests.support.validators import check_anthropic, check_gemini, check_openai, check_openai_responses
from tests.support.written_requests import write_in
from tests.unit.render.formats.layouts import call, layout_of_messages, request_of, result, round_trip, says, user

Json = dict[str, Any]
GO: Json = {"role": "user", "parts": [{"text": "go"}]}
PNG: Json = {"inlineData": {"mimeType": "image/png", "data": "AA=="}}
# A response of gemini-3, as the SDK's `response.candidates[0].content` dumps it with `model_dump(mode="json")`.
SIGNED: Json = {
    "role": "model",
    "parts": [
        {"text": "I look first.", "thought": True},
        {"functionCall": {"id": "a1", "name": "read", "args": {"path": "a"}}, "thoughtSignature": "c2lnbmVk"},
        {"functionCall": {"id": "a2", "name": "read", "args": {"path": "b"}}},
    ],
}
ANSWERED: Json = {
    "role": "user",
    "parts": [
        {"functionResponse": {"id": "a2", "name": "read", "response": {"result": "two"}}},
        {"functionResponse": {"id": "a1", "name": "read", "response": {"lines": [1, None], "end": "x"}}},
        {"text": "and now?"},
    ],
}
DONE: Json = {"role": "model", "parts": [{"text": "Both."}, {"text": "", "thoughtSignature": "ZW5k"}]}


def contents(*blocks: Block, **more: Any) -> list[Json]:
    request = request_of("gemini", *blocks, **more)
    check_gemini(request)
    found: list[Json] = request["contents"]
    return found


def test_a_signed_round_comes_back_as_it_was() -> None:
    messages = [GO, SIGNED, ANSWERED, DONE]
    assert round_trip("gemini", messages) == messages
    check_gemini({"contents": messages})
    signatures = json.dumps(round_trip("gemini", messages))
    assert "c2lnbmVk" in signatures and "ZW5k" in signatures, "Gemini 3 refuses its own calls without them"


def test_every_other_format_has_the_round_too() -> None:
    layout = layout_of_messages("gemini", [GO, SIGNED, ANSWERED, DONE])
    for form, check in (
        ("openai", check_openai),
        ("anthropic", check_anthropic),
        ("openai-responses", check_openai_responses),
    ):
        request = write_in(form, layout).request
        check(request)
        text = json.dumps(request)
        assert "c2lnbmVk" not in text and "I look first." not in text, "reasoning is its own provider's"
        assert all(one in text for one in ("go", "two", "lines", "and now?", "Both."))


def test_calls_without_ids_are_paired_by_name_in_order_and_keep_none() -> None:
    calls = [{"functionCall": {"name": name, "args": {"n": n}}} for n, name in enumerate(("read", "list", "read"))]
    answers = [
        {"functionResponse": {"name": name, "response": {"output": f"{name} {n}"}}}
        for n, name in ((0, "read"), (2, "read"), (1, "list"))
    ]
    messages = [GO, {"role": "model", "parts": calls}, {"role": "user", "parts": answers}]
    assert round_trip("gemini", messages) == messages
    events = FORMATS["gemini"].read(messages)
    ids = {event["arguments"]["n"]: event["call_id"] for event in events if event["type"] == "tool.call"}
    assert len(set(ids.values())) == 3
    said = {event["call_id"]: event["content"] for event in events if event["type"] == "tool.result"}
    assert {n: said[call_id] for n, call_id in ids.items()} == {0: "read 0", 1: "list 1", 2: "read 2"}
    late = FORMATS["gemini"].read(messages[2:])
    assert [event["call_id"] for event in late] == [ids[0], ids[2], ids[1]], "also where they come by themselves"


def test_an_sdks_notation_and_nulls_are_read() -> None:
    dumped = {
        "role": "model",
        "parts": [
            {
                "text": None,
                "thought_signature": "c2ln",
                "inline_data": None,
                "function_call": {"id": None, "name": "read", "args": {"path": None}},
            }
        ],
    }
    answer = {"role": "user", "parts": [{"function_response": {"name": "read", "response": {"output": "x"}}}]}
    [_, said, answered] = round_trip("gemini", [GO, dumped, answer])
    assert said["parts"] == [
        {"function_call": {"name": "read", "args": {"path": None}}, "thought_signature": "c2ln"}
    ], "what a model wrote into its arguments stays"
    assert answered == answer


@pytest.mark.parametrize(
    ("answer", "content", "error"),
    [
        ({"output": "x"}, "x", None),
        ({"result": ""}, "", None),
        ({"error": "no such file"}, "no such file", True),
        ({"a": 1}, '{"a":1}', None),
        ({"output": {"a": 1}}, '{"output":{"a":1}}', None),
        ({}, "{}", None),
    ],
)
def test_a_response_is_read_as_text_and_comes_back(answer: Json, content: str, error: bool | None) -> None:
    model = {"role": "model", "parts": [{"functionCall": {"id": "1", "name": "f", "args": {}}}]}
    back = {"role": "user", "parts": [{"functionResponse": {"id": "1", "name": "f", "response": answer}}]}
    read = FORMATS["gemini"].read([GO, model, back])[-1]
    assert (read["content"], read.get("is_error")) == (content, error)
    assert round_trip("gemini", [GO, model, back]) == [GO, model, back]


def test_unknown_parts_and_parts_with_a_type_stay() -> None:
    odd = {"role": "user", "parts": [{"text": "x"}, {"hologram": {"depth": 1}}, {"type": "own", "more": 1}]}
    assert round_trip("gemini", [odd]) == [odd]


def test_leading_system_contents_are_the_system_instruction() -> None:
    layout = layout_of_messages("gemini", [{"role": "system", "parts": [{"text": "Help."}]}, GO])
    request = write_in("gemini", layout).request
    assert request == {"systemInstruction": {"parts": [{"text": "Help."}]}, "contents": [GO]}
    assert write_in("openai", layout).request["messages"][0] == {"role": "system", "content": "Help."}


def test_foreign_calls_get_the_placeholder_signature() -> None:
    blocks = (user(1), call(2, "c1"), call(3, "c2"), result(4, "c2"), result(5, "c1"), says(6, "so"))
    [_, model, answers, _] = contents(*blocks)
    assert [part.get("thoughtSignature") for part in model["parts"]] == [UNSIGNED, None]
    assert [part["functionResponse"]["id"] for part in answers["parts"]] == ["c2", "c1"]
    assert answers["parts"][0]["functionResponse"]["response"] == {"output": "found"}


def test_a_failed_result_and_a_stub_of_one() -> None:
    failed = contents(user(1), call(2, "a"), result(3, "a", "boom", is_error=True))[-1]
    assert failed["parts"][0]["functionResponse"]["response"] == {"error": "boom"}
    stub = contents(user(1), call(2, "a"), result(3, "a", "[left out]", is_error=True, replaced=True))[-1]
    assert stub["parts"][0]["functionResponse"]["response"] == {"output": "[left out]"}


def test_two_answers_in_a_row_are_one_content_and_the_first_is_the_users() -> None:
    found = contents(says(1, "one"), says(2, "two"), call(3, "a"), result(4, "a"))
    assert [content["role"] for content in found] == ["user", "model", "user"]
    assert [part.get("text") for part in found[1]["parts"]] == ["one", "two", None]


def test_images_of_results_follow_the_round() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
    found = contents(user(1), call(2, "a"), call(3, "b"), result(4, "a", [image]), result(5, "b"), says(6, "seen"))
    assert [content["role"] for content in found] == ["user", "model", "user", "user", "model"]
    assert found[3]["parts"] == [{"text": "Images from the tool results above:"}, PNG]


def test_a_system_message_in_the_conversation_is_the_users_in_tags() -> None:
    [first] = contents(user(1), Block(Kind.SYSTEM, 2, "Be brief."))
    assert first["parts"][1] == {"text": "<system-message>\nBe brief.\n</system-message>"}


DECLARED: Json = {
    "functionDeclarations": [
        {
            "name": "default_api:read.file",
            "description": "Reads",
            "parameters": {"type": "OBJECT", "properties": {"path": {"type": "STRING", "nullable": True}}},
        }
    ]
}
SEARCH: Json = {"googleSearch": {}}
CHAT: Json = {"type": "function", "function": {"name": "3d-list", "parameters": {"type": "object"}}}


def test_tools_are_written_in_each_shape() -> None:
    tools = [DECLARED, SEARCH, CHAT]
    request = request_of("gemini", user(1), tools=tools)
    check_gemini(request)
    added = {"name": "_3d-list", "parametersJsonSchema": {"type": "object"}}
    assert request["tools"] == [DECLARED, SEARCH, {"functionDeclarations": [added]}]
    [first, second] = request_of("openai", user(1), tools=tools)["tools"]
    assert first["function"] == {
        "name": "default_api_read_file",
        "description": "Reads",
        "parameters": {"type": "object", "properties": {"path": {"type": "string", "nullable": True}}},
    }
    assert second == CHAT
    for form, check in (("anthropic", check_anthropic), ("openai-responses", check_openai_responses)):
        check(request_of(form, user(1), tools=tools))


def test_calls_have_the_names_of_their_tools() -> None:
    found = contents(user(1), call(2, "a", "3d-list"), result(3, "a"), tools=[CHAT])
    assert found[1]["parts"][0]["functionCall"]["name"] == "_3d-list"
    assert found[2]["parts"][0]["functionResponse"]["name"] == "_3d-list"


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"role": "robot", "parts": []}, "role"),
        ({"role": "user", "parts": "x"}, "parts"),
        ({"role": "user", "parts": ["x"]}, "parts"),
        ({"role": "model", "parts": [{"functionCall": {"args": {}}}]}, "name"),
        ({"role": "user", "parts": [{"functionResponse": {"name": "f", "response": "x"}}]}, "response"),
        ({"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {}, "parts": 1}}]}, "parts"),
    ],
)
def test_an_invalid_content_is_refused(message: Json, field: str) -> None:
    with pytest.raises(InvalidMessage) as refused:
        FORMATS["gemini"].read([GO, message])
    assert refused.value.fields == {"index": 1, "field": field}


def test_a_response_without_parts_is_named_as_empty() -> None:
    [_, said] = round_trip("gemini", [GO, {"role": "model"}])
    assert said == {"role": "model", "parts": [{"text": "(empty)"}]}
