"""Anthropic's messages: fields that are kept or refused, and the form of other formats' events."""

from typing import Any

import pytest

from app.core.errors import InvalidMessage
from app.core.log.event import Block, Kind
from app.core.render.formats import FORMATS
from app.core.render.formats.layout import Breakpoint, Layout
from tests.support.validators import check_anthropic
from tests.support.written_requests import places, write_in
from tests.unit.render.formats.layouts import call, layout_of_messages, request_of, result, round_trip, says, user

USER = {"role": "user", "content": "hi"}
THINKING = {"type": "thinking", "thinking": "hm", "signature": "s"}
REDACTED = {"type": "redacted_thinking", "data": "eA=="}


def text(words: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **fields}


def use(call_id: str, **fields: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "read", "input": {}, **fields}


def answer(call_id: str, **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, **fields}


def assistant(*parts: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(parts)}


def users(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


SEARCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [{"type": "web_search_result"}]}


@pytest.mark.parametrize(
    "messages",
    [
        [USER, {"role": "assistant", "content": "hello"}, users(text("a"), text("b"))],
        [USER, assistant(THINKING, REDACTED, text("a", citations=[{"type": "char_location"}])), USER],
        [USER, {"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}, USER, USER],
        [USER, assistant(SEARCH, FOUND, text("found")), USER],
        [USER, assistant(text("a"), use("t"), text("b"), use("u")), users(answer("u"), answer("t", content=""))],
        [USER, assistant(THINKING, use("t", caller={"type": "direct"})), users(answer("t", content=[]))],
        [USER, assistant(use("t")), users(answer("t", content=[text("x")], is_error=True), text("go on"))],
        [USER, assistant(use("t")), users(answer("t", content="x", is_error=False))],
        [users({"type": "image", "source": {"type": "file", "file_id": "f"}}, {"type": "hologram", "x": [None]})],
        [users({"type": "document", "source": {"type": "url", "url": "u"}, "citations": {"enabled": True}})],
    ],
)
def test_messages_come_back_as_they_were(messages: list[dict[str, Any]]) -> None:
    assert round_trip("anthropic", messages) == messages


def test_the_clients_cache_markers_are_taken_off_everywhere() -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    messages = [
        {"role": "system", "content": [text("s", **mark)]},
        users(text("a", **mark)),
        assistant(use("t", **mark)),
        users(answer("t", content=[text("x", **mark)], **mark)),
    ]
    tools = [{"name": "read", "input_schema": {"type": "object"}, **mark}]
    layout = layout_of_messages("anthropic", messages)
    request = request_of("anthropic", *layout.blocks, system=layout.system, tools=tools)
    check_anthropic(request)
    assert "cache_control" not in str(request)


def test_where_the_log_wants_one_place_the_order_is_the_providers() -> None:
    """Results come first in their message, and a round's results are in one message."""
    late = [USER, assistant(use("t"), use("u")), users(text("q"), answer("t")), users(answer("u"))]
    assert round_trip("anthropic", late[:3])[2] == users(answer("t"), text("q"))
    together = [USER, assistant(use("t"), use("u")), users(answer("t")), users(answer("u"))]
    assert round_trip("anthropic", together)[2:] == [users(answer("t"), answer("u"))]


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("", None),
        ("role", {"role": "tool", "content": "x"}),
        ("content", {"role": "user"}),
        ("content", users("x")),
        ("content", users({"type": 7})),
        ("content", users(use("t"))),
        ("content", assistant(answer("t"))),
        ("id", assistant(use(""))),
        ("name", assistant(use("t", name=None))),
        ("tool_use_id", users({"type": "tool_result"})),
        ("content", users(answer("t", content=7))),
    ],
)
def test_a_malformed_message_is_named(field: str, message: Any) -> None:
    with pytest.raises(InvalidMessage) as refused:
        FORMATS["anthropic"].read([USER, message])
    assert refused.value.fields == {"index": 1, "field": field}


def test_a_user_message_of_results_and_words_is_several_events() -> None:
    events = FORMATS["anthropic"].read([USER, assistant(use("t")), users(answer("t"), text("go on"))])
    assert [event["type"] for event in events] == ["user.message", "tool.call", "tool.result", "user.message"]
    assert [event["native"].get("head") for event in events] == [{}, {}, {}, None]


def test_blocks_that_the_provider_would_refuse_are_left_out_or_named() -> None:
    messages = [users(text(" "), text("a")), assistant(text("\n")), {"role": "user", "content": ""}]
    assert round_trip("anthropic", messages) == [
        users(text("a")),
        assistant(text("(empty)")),
        {"role": "user", "content": "(empty)"},
    ]


def test_trailing_reasoning_is_held_until_its_response_follows() -> None:
    alone = request_of("anthropic", user(1), says(2, [THINKING]))
    assert alone["messages"] == [users(text("go"))]
    followed = request_of("anthropic", user(1), says(2, [THINKING]), call(3, "a"), result(4, "a"))
    check_anthropic(followed)
    assert followed["messages"][1]["content"][0] == THINKING
    check_anthropic(request_of("anthropic", user(1), says(2, [THINKING]), user(3)))
    layout = layout_of_messages("anthropic", [USER, assistant(text("a"), THINKING), USER])
    assert request_of("anthropic", *layout.blocks)["messages"] == [USER, assistant(text("a")), USER]
    assert list(places(Layout(blocks=layout.blocks))) == [1, 2, 3]


def test_neutral_reasoning_is_whole_or_absent() -> None:
    parts = [{"type": "reasoning", "text": "why"}, {"type": "reasoning", "text": "hm", "signature": "s"}, text("a")]
    assert request_of("anthropic", user(1), says(2, parts))["messages"][1]["content"] == [THINKING, text("a")]


def test_the_first_message_is_the_users() -> None:
    request = request_of("anthropic", says(1, "hello"))
    check_anthropic(request)
    assert [message["role"] for message in request["messages"]] == ["user", "assistant"]


def test_system_messages_on_the_way_are_wrapped_user_text() -> None:
    request = request_of("anthropic", user(1), Block(Kind.SYSTEM, 2, "Be kind."))
    assert request["messages"] == [users(text("go"), text("<system-message>\nBe kind.\n</system-message>"))]


def test_neutral_blocks_of_one_role_are_one_message_with_results_first() -> None:
    request = request_of(
        "anthropic",
        user(1),
        says(2, "Let me see."),
        call(3, "a"),
        call(4, "b"),
        result(5, "a"),
        result(6, "b", is_error=True),
        Block(Kind.NOTE, 7, "a note"),
        user(8, "and?"),
    )
    check_anthropic(request)
    assert request["messages"][1:] == [
        assistant(text("Let me see."), use("a"), use("b")),
        users(answer("a", content="found"), answer("b", content="found", is_error=True), text("a note"), text("and?")),
    ]


def test_call_ids_are_made_legal_and_unique_in_pairs() -> None:
    blocks = [user(1)]
    for number, call_id in enumerate(["call.1", "call/1", "x" * 90, "a_9", "a", "a", "call.1", "Ω"]):
        blocks += [call(2 * number + 1, call_id), result(2 * number + 2, call_id)]
    request = request_of("anthropic", *blocks)
    check_anthropic(request)
    ids = [part["id"] for m in request["messages"] for part in m["content"] if part["type"] == "tool_use"]
    assert ids[3:5] == ["a_9", "a"]
    shorter = request_of("anthropic", *blocks[:-4])
    assert request["messages"][: len(shorter["messages"])] == shorter["messages"]


def test_images_and_documents_of_others_take_this_shape() -> None:
    parts = [
        {"type": "image_url", "image_url": {"url": "data:image/jpg;base64,AA=="}},
        {"type": "input_image", "image_url": "https://example.org/a.png"},
        {"type": "image", "data": "AA==", "mime": "image/svg+xml"},
        {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERg=="},
        {"type": "file", "file": {"filename": "a.csv", "file_data": "data:text/csv;base64,YSxi"}},
        {"type": "file", "file": {"file_id": "f"}},
        {"type": "input_audio", "input_audio": {}},
    ]
    request = request_of("anthropic", user(1, parts))
    check_anthropic(request)
    assert request["messages"][0]["content"] == [
        {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": "AA=="}},
        {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}},
        text("[image]"),
        {
            "type": "document",
            "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="},
            "title": "a.pdf",
        },
        {
            "type": "document",
            "source": {"type": "text", "media_type": "text/plain", "data": "a,b"},
            "title": "a.csv",
        },
        text("[file]"),
        text("[input_audio]"),
    ]


def test_assistant_images_are_named_in_text() -> None:
    parts = [{"type": "image", "url": "u"}, {"type": "input_file", "filename": "a.pdf", "file_url": "u"}, text("a")]
    request = request_of("anthropic", user(1), says(2, parts))
    assert request["messages"][1]["content"] == [text("[image]"), text("[file a.pdf]"), text("a")]


def test_arguments_text_becomes_an_object_that_can_be_written() -> None:
    block = call(2, "a", arguments='{"x": "\\ud800", "y": NaN, "n": 1e999, "z": "\\ud83d\\udc08"}')
    request = request_of("anthropic", user(1), block, result(3, "a"))
    assert request["messages"][1]["content"][0]["input"] == {"x": "\ufffd", "y": "NaN", "n": "1e999", "z": "🐈"}


def test_a_refusal_of_another_provider_becomes_text() -> None:
    layout = layout_of_messages("openai", [USER, {"role": "assistant", "content": None, "refusal": "I will not."}])
    assert request_of("anthropic", *layout.blocks)["messages"][1] == assistant(text("I will not."))


def test_markers_are_on_the_last_part_that_can_carry_one() -> None:
    native = {"format": "anthropic", "head": {}}
    blocks = (user(2, "go", native=native), says(3, [text("a"), THINKING]), call(4, "a"), result(5, "a"))
    layout = layout_of_messages("anthropic", [{"role": "system", "content": "s"}])
    points = [Breakpoint(1, "system"), Breakpoint(2, "previous"), Breakpoint(3, "chain"), Breakpoint(9, "tail")]
    out = write_in("anthropic", Layout(system=layout.system, blocks=blocks), points)
    check_anthropic(out.request)
    assert out.breakpoints == tuple(points[:3])
    marked = [p for m in [{"content": out.request["system"]}, *out.request["messages"]] for p in m["content"]]
    assert [p["text"] for p in marked if "cache_control" in p] == ["s", "go", "a"]
