"""A list or an object in place of any value of a message or an event is refused, or sent back: it never fails."""

import copy
import json
from collections.abc import Iterator
from typing import Any, cast

import pytest

from app.core.errors import InvalidEvent, InvalidMessage
from app.core.log.appends import parse_batch
from app.core.render.formats import FORMATS, check_native
from app.core.render.formats.fit import prepare
from tests.support.written_requests import write_in
from tests.unit.render.formats.layouts import layout_of

Json = Any
MESSAGES: dict[str, list[Json]] = {
    "openai": [
        {"role": "system", "content": "Help."},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://a/b.png", "detail": "low"}}]},
        {
            "role": "assistant",
            "content": "Reads.",
            "audio": {"id": "a", "transcript": "hi"},
            "annotations": [{"type": "url_citation", "url_citation": {"url": "https://a"}}],
            "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "read", "arguments": "{}"}},
                {"id": "d", "type": "custom", "custom": {"name": "patch", "input": "x"}},
            ],
        },
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "found"}]},
    ],
    "openai-responses": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Help."}]},
        {"role": "user", "content": [{"type": "input_file", "file_data": "data:text/plain;base64,YQ=="}]},
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "a", "annotations": [{"type": "citation"}]}]},
        {"type": "function_call", "id": "f", "call_id": "c", "name": "read", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "found"}]},
        {"type": "local_shell_call", "id": "l", "call_id": "d", "action": {"type": "exec", "command": ["ls"]}},
        {"type": "local_shell_call_output", "id": "l", "output": "found"},
        {"type": "computer_call", "id": "m", "call_id": "e", "action": {"type": "click"}},
        {"type": "computer_call_output", "call_id": "e", "output": {"type": "computer_screenshot", "image_url": "u"}},
    ],
    "anthropic": [
        {"role": "system", "content": "Help."},
        {
            "role": "user",
            "content": [{"type": "document", "source": {"type": "content", "content": [{"type": "text"}]}}],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "a", "citations": [{"type": "char_location", "file_id": "f"}]},
                {"type": "tool_use", "id": "c", "name": "read", "input": {"a": 1}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text"}]}]},
    ],
    "gemini": [
        {"role": "system", "parts": [{"text": "Help."}]},
        {"role": "user", "parts": [{"inlineData": {"mimeType": "text/plain", "data": "YQ=="}}, {"type": "odd"}]},
        {"role": "model", "parts": [{"text": "hm", "thought": True}, {"function_call": {"name": "read", "args": {}}}]},
        {"role": "user", "parts": [{"function_response": {"name": "read", "response": {"output": "found"}}}]},
    ],
}
WRONG: tuple[Json, ...] = ([], ["x"], {}, {"a": 1})
forms = pytest.mark.parametrize("form", MESSAGES)


def variants(value: Json) -> Iterator[Json]:
    """Yield copies of a value with one of its inner values replaced."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        for wrong in WRONG:
            changed = copy.copy(value)
            changed[key] = copy.deepcopy(wrong)
            yield changed
        if isinstance(inner, (dict, list)):
            for variant in variants(inner):
                changed = copy.copy(value)
                changed[key] = variant
                yield changed


def assert_writable(events: list[Json]) -> None:
    layout = layout_of(events)
    for form in FORMATS:
        write_in(form, prepare(layout, form).layout)


@forms
def test_a_message_is_refused_with_its_index_or_written_in_every_format(form: str) -> None:
    for number, message in enumerate(MESSAGES[form]):
        for variant in variants(message):
            messages = [*MESSAGES[form][:number], variant, *MESSAGES[form][number + 1 :]]
            try:
                events = FORMATS[form].read(messages)
                parse_batch(events, native=True)
            except InvalidMessage as refused:
                assert cast(int, refused.fields["index"]) >= number, (variant, refused)
                continue
            except InvalidEvent:
                continue
            assert_writable(events)


@forms
def test_an_event_is_refused_or_written_in_every_format(form: str) -> None:
    for event in json.loads(json.dumps(FORMATS[form].read(MESSAGES[form]))):
        given = event | {"native": {"head": {}, **event["native"]}}
        given["native"]["part"] = {"key": "function_call", "item": {"type": "a"}, **given["native"].get("part", {})}
        for variant in (*variants(event), *variants(given)):
            try:
                drafts = parse_batch([variant], native=True)
                check_native(drafts[0], 0)
            except InvalidEvent:
                continue
            assert_writable([variant])


@forms
@pytest.mark.parametrize("role", [["user"], {"a": 1}, 1, True, "stranger"])
def test_a_role_that_is_no_known_text_is_named(form: str, role: Json) -> None:
    messages = [*MESSAGES[form][:2], {**MESSAGES[form][1], "role": role}]
    with pytest.raises(InvalidMessage, match="unknown role") as refused:
        FORMATS[form].read(messages)
    assert refused.value.fields == {"index": 2, "field": "role"}
