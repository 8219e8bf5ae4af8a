"""Providers' calls: the conversation in a body, the parts of it that are replaced, and a failed response."""

import json
from typing import Any

import pytest

from app.core.wire import bodies
from app.core.wire.calls import CallConversation, NotBudgeted, read_conversation, write_body
from app.core.wire.providers import PROVIDERS
from app.core.wire.replies import ResponsesReply
from tests.support.validators import check_anthropic

MARK = {"type": "ephemeral"}


def endpoint(path: str) -> Any:
    return next(found for one in PROVIDERS.values() if (found := one.endpoint(path)) is not None)


def conversation(path: str, call: str) -> CallConversation:
    return read_conversation(endpoint(path), bodies.parse(call.encode()))


def replaced(path: str, call: str, request: dict[str, Any]) -> str:
    return write_body(conversation(path, call), bodies.parse(json.dumps(request).encode())).decode()


def test_only_messages_and_system_are_replaced_and_every_other_byte_stays() -> None:
    call = (
        '{ "model" : "m",\n "max_tokens":1.0e3, "system":"s", '
        '"tools":[{"name":"a", "cache_control":{"type":"ephemeral"}}],'
        '"messages": [ {"role":"user","content":"hi"} ], "metadata": {"user_id":"\\u00fc"}, "x":1E400 }'
    )
    request = {"system": [{"type": "text", "text": "s"}], "messages": [{"role": "user", "content": "shorter"}]}
    assert replaced("/v1/messages", call, request) == (
        '{"model" : "m","max_tokens":1.0e3,"system":[{"type": "text", "text": "s"}],'
        '"tools":[{"name":"a", "cache_control":{"type":"ephemeral"}}],'
        '"messages": [{"role": "user", "content": "shorter"}],"metadata": {"user_id":"\\u00fc"},"x":1E400}'
    )


def test_our_markers_leave_room_for_those_on_the_clients_tools() -> None:
    def marked(text: str) -> dict[str, Any]:
        return {"type": "text", "text": text, "cache_control": MARK}

    tool = {"name": "a", "input_schema": {"type": "object"}, "cache_control": MARK}
    call = {"model": "m", "system": "s", "tools": [tool], "messages": [{"role": "user", "content": "hi"}]}
    request = {
        "system": [marked("s")],
        "messages": [{"role": "user", "content": [marked("1"), marked("2"), marked("3")]}],
        "tools": [tool],
    }
    sent = json.loads(replaced("/v1/messages", json.dumps(call), request))
    check_anthropic({name: sent[name] for name in ("system", "messages", "tools")})
    assert sent["tools"] == [tool]
    assert ["cache_control" in part for part in sent["messages"][0]["content"]] == [True, True, True]
    assert "cache_control" not in sent["system"][0]


def test_claude_codes_call_header_stays_first_and_out_of_the_log() -> None:
    said = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=1a2b3;"}
    call = {
        "model": "m",
        "system": [said, {"type": "text", "text": "s"}],
        "messages": [{"role": "user", "content": "hi"}],
    }
    assert conversation("/v1/messages", json.dumps(call)).system == [{"type": "text", "text": "s"}]
    request = {"system": [{"type": "text", "text": "s", "cache_control": MARK}], "messages": call["messages"]}
    sent = json.loads(replaced("/v1/messages", json.dumps(call), request))
    assert sent["system"] == [said, request["system"][0]]


def test_usage_is_requested_of_a_chat_stream_unless_the_client_does() -> None:
    call = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    for options, swallows in ((None, True), ({"include_usage": False, "x": 1}, True), ({"include_usage": True}, False)):
        asked = call if options is None else {**call, "stream_options": options}
        assert conversation("/v1/chat/completions", json.dumps(asked)).hides_usage is swallows
        sent = json.loads(replaced("/v1/chat/completions", json.dumps(asked), {"messages": call["messages"]}))
        assert sent["stream_options"] == {**(options or {}), "include_usage": True}
    plain = conversation("/v1/chat/completions", json.dumps({**call, "stream": False}))
    assert not plain.hides_usage


@pytest.mark.parametrize(
    ("path", "call"),
    [
        ("/v1/messages", {"messages": []}),
        ("/v1/messages", {"messages": "hi"}),
        ("/v1/chat/completions", {}),
        ("/v1/responses", {"input": []}),
        ("/v1/responses", {"input": "hi", "conversation": "conv_1"}),
        ("/v1/responses", {"input": [{"type": "item_reference", "id": "msg_1"}]}),
    ],
)
def test_calls_without_a_conversation_are_not_budgeted(path: str, call: dict[str, Any]) -> None:
    with pytest.raises(NotBudgeted):
        conversation(path, json.dumps(call))


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"a":1,}', '{"a" 1}', '{"a":1}x', "{1:2}", '{"a":1 "b":2}', '{"a":}', "\xff", "nul"]
)
def test_a_body_that_is_no_object_is_named(text: str) -> None:
    with pytest.raises(bodies.NoObject):
        bodies.parse(text.encode("latin-1"))


def test_a_failed_response_has_its_reason_also_without_streaming() -> None:
    error = {"code": "server_error", "message": "The model broke"}
    answer = {"id": "resp_1", "status": "failed", "error": error, "output": [], "usage": None}
    found = ResponsesReply().read(answer)
    assert (found.complete, found.messages, found.error) == (False, (), error)
