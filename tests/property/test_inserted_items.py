"""Compaction items before replies: the rest of the reply stays as it is, for any chunking and any line ends."""

import itertools
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.wire.bodies import Splitter, with_event_text
from app.core.wire.compacted import INSERTIONS, Insertion, anthropic_block, responses_item
from tests.property.test_gateway_replies import said
from tests.support.provider import STREAMS, ProviderReply

PATHS = {"/v1/messages": "anthropic", "/v1/responses": "openai-responses"}
LISTS = {"anthropic": "content", "openai-responses": "output"}
INDICES = {"anthropic": "index", "openai-responses": "output_index"}
Json = dict[str, Any]


def _insertion(form: str) -> Insertion:
    block = anthropic_block("They said hello.", "palimpsest.1.x")
    return INSERTIONS[form](block if form == "anthropic" else responses_item("1", "palimpsest.1.x"))


def _relayed(form: str, stream: bytes, cuts: list[int]) -> bytes:
    """Return a stream with an item, received in the pieces that the cuts make."""
    insertion, splitter = _insertion(form), Splitter()
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    chunks = [chunk for start, end in itertools.pairwise(edges) for chunk in splitter.feed(stream[start:end])]
    sent = b""
    for raw, _ in [*chunks, splitter.end()]:
        value = Splitter.read(raw)
        sent += raw if value is None else insertion.rewrite_event(raw, value)
    return sent


def _values(stream: bytes) -> list[Json]:
    splitter = Splitter()
    chunks = [*splitter.feed(stream), splitter.end()]
    return [dict(value) for value in (Splitter.read(one.raw) for one in chunks) if value is not None]


@given(
    st.sampled_from(sorted(PATHS)),
    said,
    st.lists(st.integers(0, 10_000), max_size=8),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
)
def test_a_stream_has_the_item_first_and_its_own_events_in_order(
    path: str, reply: ProviderReply, cuts: list[int], end: bytes
) -> None:
    form = PATHS[path]
    _, events = STREAMS[path]({"model": "m"}, reply, 1, 100)
    stream = b"".join(events).replace(b"\n", end)
    sent = _values(_relayed(form, stream, cuts))
    own, item = _values(stream), dict(_insertion(form).item)
    new = [one for one in sent if one.get(INDICES[form]) == 0]
    assert len(sent) == len(own) + len(new)
    rest = [one for one in sent if one not in new]
    for before, after in zip(own, rest, strict=True):
        expected = json.loads(json.dumps(before))
        if INDICES[form] in expected:
            expected[INDICES[form]] += 1
        if "sequence_number" in expected and sent.index(after) > sent.index(new[0]):
            expected["sequence_number"] += len(new)
        if expected["type"] == "response.completed":
            expected["response"]["output"].insert(0, item)
        assert after == expected
    numbers = [one["sequence_number"] for one in sent if "sequence_number" in one]
    assert numbers == list(range(len(numbers)))
    if form == "anthropic":
        assert [one["type"] for one in sent[:4]] == [
            "message_start",
            *(f"content_block_{n}" for n in ("start", "delta", "stop")),
        ]
        assert {**new[1]["delta"], "type": "compaction"} == item
    else:
        assert [one["item"] for one in new] == [item, item]


@given(st.sampled_from(sorted(PATHS)), said)
def test_a_whole_response_has_the_item_first(path: str, reply: ProviderReply) -> None:
    form = PATHS[path]
    whole, _ = STREAMS[path]({"model": "m"}, reply, 1, 100)
    sent = json.loads(_insertion(form).rewrite_response(json.dumps(whole, indent=1).encode()))
    assert sent == {**whole, LISTS[form]: [_insertion(form).item, *whole[LISTS[form]]]}


@pytest.mark.parametrize("form", sorted(INSERTIONS))
@pytest.mark.parametrize(
    "text",
    [b"", b"[1]", b'{"type": "error", "error": {}}', b'{"status": "queued", "output": []}', b'{"type":"message"}'],
)
def test_any_other_response_is_left_as_it_is(form: str, text: bytes) -> None:
    assert _insertion(form).rewrite_response(text) == text


@pytest.mark.parametrize("form", sorted(INSERTIONS))
def test_events_without_a_reply_are_left_as_they_are(form: str) -> None:
    insertion = _insertion(form)
    values: list[Json] = [{"type": "ping"}, {"type": "error", "error": {}}, {"type": "response.failed", "response": {}}]
    for value in values:
        event = f"data: {json.dumps(value)}\n\n".encode()
        assert insertion.rewrite_event(event, value) == event
    assert not insertion.inserted


@given(st.sampled_from(sorted(PATHS)), said)
def test_no_byte_of_an_event_changes_but_its_numbers_and_spaces(path: str, reply: ProviderReply) -> None:
    insertion = _insertion(PATHS[path])
    _, events = STREAMS[path]({"model": "m"}, reply, 1, 100)
    for event in events:
        value = Splitter.read(event)
        assert value is not None
        sent = insertion.rewrite_event(event, value)
        if value["type"] != "response.completed":
            assert _plain(event) in _plain(sent)


def _plain(event: bytes) -> bytes:
    return re.sub(rb'"(index|output_index|sequence_number)":\d+', b"", event.replace(b" ", b""))


def test_data_in_several_lines_is_replaced_as_one() -> None:
    event = b'event: x\r\ndata: {"index":\r\ndata: 3}\r\nid: 7\r\n\r\n'
    sent = with_event_text(event, '{"index": 4}')
    assert Splitter.read(sent) == {"index": 4}
    assert sent == b'event: x\r\ndata: {"index": 4}\r\ndata:\r\nid: 7\r\n\r\n'
