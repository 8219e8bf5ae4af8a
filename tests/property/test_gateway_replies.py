"""A reply read from a stream equals that of the whole response, for any chunking and any line ends."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.wire.bodies import Chunk, Splitter, parse
from app.core.wire.calls import CallConversation, read_conversation
from app.core.wire.providers import PROVIDERS
from app.core.wire.replies import Reply
from tests.support.provider import STREAMS, ProviderReply

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
arguments = st.dictionaries(st.text(max_size=5), words | st.integers() | st.lists(words, max_size=2), max_size=3)
calls = st.lists(arguments, max_size=3).map(
    lambda given: [(f"call_{number}", "tool", one) for number, one in enumerate(given)]
)
said = st.builds(ProviderReply, text=words, calls=calls, thinking=st.none() | st.just("I think"))
paths = st.sampled_from(sorted(STREAMS))


def conversation(path: str, **more: bool) -> CallConversation:
    endpoint = next(found for one in PROVIDERS.values() if (found := one.endpoint(path)) is not None)
    field = "input" if path == "/v1/responses" else "messages"
    call = {field: [{"role": "user", "content": "hi"}], **more}
    return read_conversation(endpoint, parse(json.dumps(call).encode()))


def reply_of(path: str, stream: bytes, cuts: list[int]) -> Reply:
    accumulator, splitter = conversation(path, stream=True).accumulator(), Splitter()
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    events: list[Chunk] = []
    for start, end in itertools.pairwise(edges):
        events += splitter.feed(stream[start:end])
    events.append(splitter.end())
    assert b"".join(chunk.raw for chunk in events) == stream
    for value in (Splitter.read(chunk.raw) for chunk in events):
        if value is not None:
            accumulator.feed(value)
    return accumulator.reply()


def whole_reply(path: str, answer: dict[str, Any]) -> Reply:
    return conversation(path).accumulator().read(answer)


@given(paths, said, st.lists(st.integers(0, 10_000), max_size=12), st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_any_chunking_gives_the_reply_of_the_whole_response(
    path: str, one: ProviderReply, cuts: list[int], end: bytes
) -> None:
    body = {"model": "m", "stream_options": {"include_usage": True}}
    whole, events = STREAMS[path](body, one, 1, 100)
    stream = b"".join(events).replace(b"\n", end)
    expected = whole_reply(path, whole)
    found = reply_of(path, stream, cuts)
    assert found.complete
    assert json.dumps(_plain(found.messages)) == json.dumps(_plain(expected.messages))
    assert found.usage == expected.usage
    assert found.usage is not None
    assert found.usage["output_tokens"] == 7
    assert found == reply_of(path, stream, [])


@given(paths, said, st.integers(0, 200))
def test_a_broken_stream_gives_its_whole_parts_and_is_marked(path: str, one: ProviderReply, last: int) -> None:
    whole, events = STREAMS[path]({"model": "m"}, one, 1, 100)
    stream = b"".join(events)
    cut = stream[: len(stream) * last // 201]
    found = reply_of(path, cut, [])
    expected = whole_reply(path, whole)
    assert not found.complete or found.messages == reply_of(path, stream, []).messages
    for call in _calls(found.messages):
        assert call in _calls(expected.messages)
    assert "".join(_texts(expected.messages)).startswith("".join(_texts(found.messages)))


def _plain(messages: Any) -> Any:
    """Return the messages without nulls, which only one way of responding has."""
    return [{name: value for name, value in sorted(one.items()) if value is not None} for one in messages]


def _calls(messages: Any) -> list[Any]:
    found = [call for one in messages for call in one.get("tool_calls") or ()]
    found += [one for one in messages if one.get("type") == "function_call"]
    parts = [part for one in messages for part in one.get("content") or () if isinstance(part, dict)]
    return found + [part for part in parts if part.get("type") == "tool_use"]


def _texts(messages: Any) -> list[str]:
    contents = [one.get("content") or "" for one in messages]
    return [
        content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
        for content in contents
    ]


@pytest.mark.parametrize("path", sorted(STREAMS))
def test_an_error_within_a_stream_is_kept(path: str) -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    _, events = STREAMS[path]({"model": "m"}, ProviderReply("Hello there."), 1, 100)
    stream = b"".join(events[:3]) + b"data: " + json.dumps(error).encode() + b"\n\n"
    found = reply_of(path, stream, [])
    assert not found.complete
    assert found.error == {"message": "Overloaded", "code": "overloaded_error"}
