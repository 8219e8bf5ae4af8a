"""Equality of events and of conversations, whatever format they were written in."""

from typing import Any

import pytest

from app.core.log.conversation import START, canonical, links
from app.core.log.segments import is_line, line_of, row_name, session_of
from app.core.render.formats import FORMATS

Json = dict[str, Any]
USER = {"type": "user.message", "content": "Hi"}
CALL = {"type": "tool.call", "call_id": "c", "tool": "look", "arguments": {"a": 1, "b": [2, None]}}
RESULT = {"type": "tool.result", "call_id": "c", "content": "found"}
TEXT = {"type": "text", "text": "Hi"}
IMAGE = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (USER, {**USER, "content": [TEXT]}),
        (USER, {**USER, "content": [{**TEXT, "cache_control": {"type": "ephemeral"}}]}),
        (USER, {**USER, "content": [{"type": "input_text", "text": "Hi"}]}),
        (USER, {**USER, "id": "u1", "author": "ann", "metadata": {"x": 1}, "pinned": True}),
        (USER, {**USER, "content": [TEXT, {"type": "text", "text": " "}]}),
        (CALL, {**CALL, "arguments": '{ "b": [2, null], "a": 1 }'}),
        ({**CALL, "arguments": {}}, {**CALL, "arguments": ""}),
        ({**RESULT, "content": None}, {**RESULT, "content": ""}),
        (RESULT, {**RESULT, "tool": "look"}),
        (
            {"type": "assistant.message", "content": "Hi"},
            {"type": "assistant.message", "content": [{"type": "thinking", "thinking": "?", "signature": "s"}, TEXT]},
        ),
        (
            {"type": "assistant.message", "content": [{"type": "refusal", "refusal": "No."}]},
            {"type": "assistant.message", "native": {"format": "openai", "head": {"refusal": "No."}}},
        ),
        (
            {**USER, "content": [IMAGE]},
            {**USER, "content": [{**IMAGE, "detail": None, "source": {**IMAGE["source"], "cache_control": {}}}]},
        ),
    ],
)
def test_equivalent_notations_are_equal(one: Json, other: Json) -> None:
    assert canonical(one) == canonical(other) is not None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (USER, {**USER, "content": "hi"}),
        (USER, {**USER, "type": "assistant.message"}),
        (USER, {**USER, "content": [TEXT, TEXT]}),
        ({**USER, "content": [TEXT, TEXT]}, {**USER, "content": "HiHi"}),
        (USER, {**USER, "content": [TEXT, IMAGE]}),
        (CALL, {**CALL, "call_id": "d"}),
        (CALL, {**CALL, "tool": "read"}),
        (CALL, {**CALL, "arguments": {"a": 1, "b": [2]}}),
        (CALL, {**CALL, "arguments": "{broken"}),
        (RESULT, {**RESULT, "is_error": True}),
        (RESULT, {**RESULT, "content": ""}),
        ({**USER, "content": '\0{"a":1}'}, {**USER, "content": [{"a": 1}]}),
    ],
)
def test_different_contents_are_not_equal(one: Json, other: Json) -> None:
    assert canonical(one) != canonical(other)


@pytest.mark.parametrize("kind", ["system.prompt", "tools", "agent.note", "announce", "turn.start", "turn.end"])
def test_events_that_clients_do_not_send_back_are_not_hashed(kind: str) -> None:
    assert canonical({"type": kind, "content": "x"}) is None


def test_a_response_of_only_reasoning_is_not_hashed() -> None:
    thinking = {"type": "assistant.message", "content": [{"type": "thinking", "thinking": "?", "signature": "s"}]}
    assert canonical(thinking) is None
    assert canonical({"type": "assistant.message", "content": ""}) is None
    assert canonical({"type": "user.message", "content": ""}) is not None
    assert [link.place for link in links([USER, thinking, RESULT])] == [0, 2]


def test_a_hash_covers_all_earlier_events() -> None:
    whole = links([USER, CALL, RESULT])
    assert links([CALL, RESULT], whole[0].hash)[-1].hash == whole[-1].hash
    assert len({START, *(link.hash for link in whole)}) == 4
    assert links([RESULT])[0].hash != whole[-1].hash


def test_calls_of_providers_own_kinds_are_distinguished_by_their_action() -> None:
    def said(action: str) -> bytes | None:
        item = {"type": "computer_call", "id": "i", "call_id": "c", "action": {"type": action}, "status": "completed"}
        [[event]] = FORMATS["openai-responses"].reader([item])
        return canonical(event)

    assert said("click") == said("click") != said("type")


def test_the_names_of_lines() -> None:
    assert is_line("a@line.2")
    assert not any(map(is_line, ("a", "a@line.", "a@line.0", "a@line.x", "@line.1", "a@line.2b")))
    assert [session_of(name) for name in ("a", "a@line.1", "a@b@line.12")] == ["a", "a", "a@b"]
    assert [line_of(name) for name in ("a", "a@line.2")] == ["a@line.1", "a@line.2"]
    assert [row_name(name) for name in ("a", "a@line.1", "a@line.2")] == ["a", "a", "a@line.2"]
