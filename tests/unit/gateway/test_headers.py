"""The session that a call names, the header fields that are forwarded, and the credentials in them."""

import json
from typing import Any

import pytest

from app.core.errors import InvalidRequest
from app.providers import redacted
from app.wings.gateway.upstream import NAME_CHARS_MAX, identify, legal_name, request_fields, response_fields, secrets

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
