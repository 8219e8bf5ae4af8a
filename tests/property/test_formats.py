"""Formats on random conversations: lossless in their own, accepted in every other, and extended by appends."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.core.errors import InvalidEvent
from app.core.log.appends import parse_batch
from app.core.log.event import REASONING_PARTS, Block, Kind
from app.core.log.events import canonical_json
from app.core.render.formats import FORMATS, check_native
from app.core.render.formats.fit import prepare
from app.core.render.formats.layout import Layout
from tests.property.builders import definitions
from tests.property.conversations import conversations, mixed_blocks
from tests.support.examples import examples
from tests.support.validators import check_anthropic, check_gemini, check_openai, check_openai_responses
from tests.support.written_requests import chosen, places, write_in
from tests.unit.render.formats.layouts import MEMBER, layout_of_messages, round_trip

CHECKS = {
    "openai": check_openai,
    "openai-responses": check_openai_responses,
    "anthropic": check_anthropic,
    "gemini": check_gemini,
}
PENDING = "still running"

some = settings(
    max_examples=examples(120), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
forms = pytest.mark.parametrize("form", CHECKS)


@forms
@some
@given(data=st.data())
def test_a_conversation_comes_back_as_it_was_sent(form: str, data: st.DataObject) -> None:
    messages = data.draw(conversations(form))
    CHECKS[form]({MEMBER[form]: messages})  # the strategy draws only what the provider accepts
    assert round_trip(form, messages) == messages


@forms
@some
@given(data=st.data())
def test_each_event_of_a_conversation_can_be_posted_as_it_was_logged(form: str, data: st.DataObject) -> None:
    events = FORMATS[form].read(data.draw(conversations(form)))
    for draft in parse_batch(json.loads(json.dumps(events)), native=True):
        check_native(draft, 0)


@forms
@some
@given(data=st.data())
def test_native_that_no_message_has_is_refused(form: str, data: st.DataObject) -> None:
    events = FORMATS[form].read(data.draw(conversations(form)))
    event = data.draw(st.sampled_from(events))
    ours = dict(event["native"])
    broken = st.sampled_from(
        [
            ours | {"head": {"role": "tool"}},
            ours | {"head": []},
            ours | {"part": {"call": [], "item": "x", "custom": 1, "type": "text"}},
            ours | {"part": "x"},
            ours | {"more": 1},
            ours | {"format": "blocks"},
            {},
        ]
    )
    (draft,) = parse_batch([event | {"native": data.draw(broken)}], native=True)
    with pytest.raises(InvalidEvent, match="native"):
        check_native(draft, 0)


@forms
@some
@given(data=st.data())
def test_every_other_provider_accepts_it_too(form: str, data: st.DataObject) -> None:
    layout = layout_of_messages(form, data.draw(conversations(form)))
    for other, check in CHECKS.items():
        fitted = prepare(layout, other).layout
        check(write_in(other, fitted, chosen(fitted)).request)


@some
@given(mixed_blocks(), definitions)
def test_a_session_of_many_formats_is_sendable_in_each(blocks: tuple[Block, ...], tools: list[dict[str, Any]]) -> None:
    given = Layout(tuple(tools), 1, (), blocks)
    for form, check in CHECKS.items():
        layout = prepare(given, form).layout
        points = chosen(layout)
        written = write_in(form, layout, points)
        check(written.request)
        assert json.loads(canonical_json(written.request)) == written.request
        assert written.breakpoints == (points if form == "anthropic" else ())


@some
@given(mixed_blocks())
def test_the_places_for_markers_are_blocks_that_are_written(blocks: tuple[Block, ...]) -> None:
    layout = prepare(Layout(blocks=blocks), "anthropic").layout
    messages = write_in("anthropic", layout).request["messages"]
    found = list(places(layout).values())
    assert [(place.message, place.part) for place in found] == sorted((place.message, place.part) for place in found)
    for place in found:
        content = messages[place.message]["content"]
        shown = [{"type": "text"}] if isinstance(content, str) else content
        assert shown[place.part]["type"] not in REASONING_PARTS
        before = sum(1 if isinstance(m["content"], str) else len(m["content"]) for m in messages[: place.message])
        assert place.at <= before + place.part + 1


@forms
@some
@given(blocks=mixed_blocks(), data=st.data())
def test_i5_appending_only_extends_what_was_written(form: str, blocks: tuple[Block, ...], data: st.DataObject) -> None:
    cut = data.draw(st.integers(1, len(blocks)))
    before = laid_out(form, blocks[:cut] + pending_of(blocks[:cut]))
    shown = write_in(form, before).request
    CHECKS[form](shown)
    settled = replace(before, blocks=tuple(block for block in before.blocks if not block.ephemeral))
    stable = pieces(form, write_in(form, settled).request)
    if before.blocks[-1].ephemeral:
        stable = without_images(form, stable)
    assert_extends(stable, pieces(form, shown))
    assert_extends(stable, pieces(form, write_in(form, laid_out(form, blocks)).request))


def without_images(form: str, stable: list[Any]) -> list[Any]:
    """Return the pieces without a round's images, which follow its pending results and are as ephemeral."""
    if form == "openai" and "Images from" in str(stable[-1]):
        return stable[:-1]
    end = len(stable)
    while form == "gemini" and not {"inlineData", "fileData"}.isdisjoint(stable[end - 1][1]):
        end -= 1
    behind = form == "gemini" and "Images from" in str(stable[end - 1])
    return stable[: end - 1] if behind else stable


def laid_out(form: str, blocks: tuple[Block, ...]) -> Layout:
    """Return the layout of the blocks as the format writes it."""
    return prepare(Layout(blocks=blocks), form).layout


def pending_of(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    """Return ephemeral stubs for the calls of the last round that have no result yet."""
    waiting: dict[str | None, Block] = {}
    for block in blocks:
        if block.kind is Kind.CALL:
            waiting[block.call_id] = block
        elif block.kind is Kind.RESULT:
            del waiting[block.call_id]
    return tuple(
        Block(Kind.RESULT, call.seq, PENDING, call_id=call_id, replaced=True, ephemeral=True)
        for call_id, call in waiting.items()
    )


def pieces(form: str, request: dict[str, Any]) -> list[Any]:
    """Return the parts by which a request can grow: items, messages, Anthropic's content blocks with their role."""
    messages = request[MEMBER[form]]
    if form == "gemini":
        return [(content["role"], part) for content in messages for part in content["parts"]]
    if form != "anthropic":
        return list(messages)
    found = []
    for message in messages:
        content = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        found += [(message["role"], part) for part in parts]
    return found


def assert_extends(before: list[Any], after: list[Any]) -> None:
    """Assert equality up to the end of `before`; if its last message is an assistant's, it may have more calls."""
    assert len(after) >= len(before)
    for index, (old, new) in enumerate(zip(before, after, strict=False)):
        if old != new and index == len(before) - 1 and isinstance(old, dict) and old.get("role") == "assistant":
            calls = old.get("tool_calls") or []
            assert new["tool_calls"][: len(calls)] == calls
            assert without_calls(new) == without_calls(old)
        else:
            assert old == new


def without_calls(message: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in message.items() if name != "tool_calls"}
