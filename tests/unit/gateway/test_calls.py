"""The gateway's pure parts: the session of a call, the replaced parts of its body, and the forwarded headers."""

import json
from typing import Any

import pytest

from app.core.errors import InvalidRequest
from app.core.wire import bodies
from app.core.wire.providers import PROVIDERS
from app.core.wire.replies import ResponsesReply
from app.providers.redaction import redacted
from app.wings.gateway.calls import CallConversation, NotBudgeted, read_conversation, write_body
from app.wings.gateway.headers import NAME_CHARS_MAX, identify, legal_name, request_fields, response_fields, secrets
from tests.support.validators import check_anthropic

MARK = {"type": "ephemeral"}
UUID = "0f8fad5b-d9cb-469f-a165-70867728950e"
ORDER: list[tuple[dict[str, str], str | None, Any, str]] = [
    ({"x-palimpsest-session": "ours"}, "path", f"user_1_account__session_{UUID}", "ours"),
    ({"x-claude-code-session-id": "cc"}, "path", None, "path"),
    ({"x-claude-code-session-id": "cc", "x-claude-code-agent-id": "a1", "session-id": "cx"}, None, "u", "cc:a1"),
    ({"x-claude-code-session-id": "cc"}, None, f"user_1_account__session_{UUID}", "cc"),
    ({"session-id": "cx", "thread-id": "cx", "x-session-id": "oc"}, None, None, "cx"),
    ({"session-id": "cx", "thread-id": "t2"}, None, None, "cx:t2"),
    ({"thread-id": "t2"}, None, None, "t2"),
    ({"x-session-id": "oc"}, None, "u", "oc"),
    ({}, None, f"user_1_account__session_{UUID}", UUID),
    ({}, None, json.dumps({"device_id": "d", "session_id": UUID}), UUID),
    ({}, None, "customer-7", "customer-7"),
]


@pytest.mark.parametrize(("headers", "path", "user", "session"), ORDER)
def test_the_first_of_the_order_names_the_session(
    headers: dict[str, str], path: str | None, user: str | None, session: str
) -> None:
    found = identify(headers, path, {"metadata": {"user_id": user}, "prompt_cache_key": "never", "system": "never"})
    assert found is not None
    assert (found.session, found.configured) == (session, session in ("ours", "path"))


@pytest.mark.parametrize(
    "body", [None, {}, {"metadata": None}, {"metadata": {"user_id": ""}}, {"prompt_cache_key": "k"}]
)
def test_nothing_else_names_one(body: Any) -> None:
    assert identify({"x-claude-code-agent-id": "a", "user-agent": "x"}, None, body) is None


def test_an_illegal_name_for_us_is_an_error_and_one_of_the_clients_own_is_made_legal() -> None:
    with pytest.raises(InvalidRequest):
        identify({"x-palimpsest-session": "two words"}, None, None)
    with pytest.raises(InvalidRequest):
        identify({}, "", None)
    names = [legal_name(said) for said in ("ann smith", "ann-smith", "ann/smith", "x" * 200, "x" * 201, "ünï")]
    assert names[1] == "ann-smith"
    assert len(set(names)) == len(names)
    assert all(len(name) <= NAME_CHARS_MAX and identify({"x-palimpsest-session": name}, None, None) for name in names)


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


def test_fields_of_one_connection_and_ours_stay_here() -> None:
    fields = [
        (b"host", b"here"),
        (b"x-api-key", b"sk-1"),
        (b"x-palimpsest-key", b"ours"),
        (b"X-Palimpsest-Session", b"s"),
        (b"connection", b"keep-alive, X-Hop"),
        (b"x-hop", b"1"),
        (b"accept-encoding", b"gzip"),
        (b"transfer-encoding", b"chunked"),
        (b"content-length", b"5"),
        (b"anthropic-beta", b"a"),
        (b"anthropic-beta", b"b"),
    ]
    kept = [
        (b"x-api-key", b"sk-1"),
        (b"accept-encoding", b"gzip"),
        (b"anthropic-beta", b"a"),
        (b"anthropic-beta", b"b"),
    ]
    assert request_fields(fields, plain=False) == kept
    assert request_fields(fields, plain=True) == [kept[0], *kept[2:], (b"accept-encoding", b"identity")]
    down = [(b"content-type", b"x"), (b"content-length", b"5"), (b"date", b"d"), (b"x-palimpsest-mode", b"forged")]
    assert response_fields(down, changed=False) == down[:2]
    assert response_fields(down, changed=True) == down[:1]


def test_credentials_are_found_wherever_they_are_sent_and_taken_out_of_texts() -> None:
    fields = [
        (b"authorization", b"Bearer sk-proj-123456"),
        (b"x-api-key", b"sk-ant-1"),
        (b"x-palimpsest-key", b"pal_secret"),
    ]
    hidden = secrets(fields, b"beta=true&key=AIza-7654321")
    text = "Incorrect key sk-proj-123456 (sk-ant-1, AIza-7654321, pal_secret) for beta=true"
    assert redacted(text, hidden) == "Incorrect key [key] ([key], [key], [key]) for beta=true"


@pytest.mark.parametrize("name", ["Access", "Pass", "Pat", "Pwd", "Jwt", "Bearer", "Sig", "Gateway-Access", "Vault"])
def test_credentials_are_found_under_whatever_name_they_are_sent(name: str) -> None:
    key = "live0123456789abcdef"
    hidden = secrets([(f"X-{name}".encode(), f"Bearer {key}".encode())])
    assert redacted(f"invalid: {key}", hidden) == "invalid: [key]"
    assert secrets([(b"x-other", key.encode())], f"id={key}".encode()) == (key,)


def test_other_values_are_not_taken_for_credentials() -> None:
    fields = [
        (b"user-agent", b"claude-cli/2.0.31 (external, cli)"),
        (b"anthropic-version", b"2023-06-01"),
        (b"anthropic-beta", b"context-1m-2025-08-07"),
        (b"x-stainless-runtime-version", b"v22.14.0"),
        (b"traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        (b"x-request-id", b"0af7651916cd43dd8448eb211c80319c"),
        (b"x-team", b"research"),
        (b"x-limit", b"200000"),
    ]
    assert secrets(fields, b"beta=true&api-version=2024-12-01-preview") == ()


def test_a_failed_response_has_its_reason_also_without_streaming() -> None:
    error = {"code": "server_error", "message": "The model broke"}
    answer = {"id": "resp_1", "status": "failed", "error": error, "output": [], "usage": None}
    found = ResponsesReply().read(answer)
    assert (found.complete, found.messages, found.error) == (False, (), error)
