"""Amazon's frames are found for any chunking, and a damaged one is named."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.wire.bodies import JSON_BYTES_MAX, BadFrame, Chunk, FrameSplitter, read_frame
from tests.support.provider import chunk_frame, frame

objects = st.lists(st.dictionaries(st.text(max_size=5), st.text(max_size=30), max_size=3), max_size=5)
cuts = st.lists(st.integers(0, 10_000), max_size=12)
ALL_HEADERS = (
    b"\x00\x00\x00\x62\x00\x00\x00\x52\x03\xb5\xcb\x9c\x010\x00\x011\x01\x012\x02\x02\x013\x03\x00\x03"
    b"\x014\x04\x00\x00\x00\x04\x015\x05\x00\x00\x00\x00\x00\x00\x00\x05\x016\x06\x00\x05bytes"
    b"\x017\x07\x00\x04utf8\x018\x08\x00\x00\x00\x00\x00\x00\x00\x08\x019\x090123456789abcdef\x63\x35\x36\x71"
)
ONE_HEADER = (
    b"\x00\x00\x00=\x00\x00\x00 \x07\xfd\x83\x96\x0ccontent-type\x07\x00\x10application/json{'foo':'bar'}"
    b"\x8d\x9c\x08\xb1"
)
"""Frames of the tests that Amazon's SDKs share."""


def split(stream: bytes, at: list[int]) -> list[Chunk]:
    splitter = FrameSplitter()
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in at), len(stream)]
    chunks = [one for start, end in itertools.pairwise(edges) for one in splitter.feed(stream[start:end])]
    chunks.append(splitter.end())
    assert b"".join(chunk.raw for chunk in chunks) == stream
    return [one for one in chunks if one.raw]


@given(objects, cuts)
def test_events_are_the_same_for_any_chunking(values: list[Any], at: list[int]) -> None:
    frames = [chunk_frame(json.dumps(value).encode()) for value in values]
    chunks = split(b"".join(frames), at)
    assert [one.raw for one in chunks] == frames and all(one.event for one in chunks)
    assert [FrameSplitter.read(one.raw) for one in chunks] == values


@given(objects.filter(bool), cuts, st.integers(0), st.integers(1, 255))
def test_a_changed_byte_is_found_wherever_it_is(values: list[Any], at: list[int], where: int, change: int) -> None:
    stream = bytearray(b"".join(chunk_frame(json.dumps(value).encode()) for value in values))
    stream[where % len(stream)] ^= change
    with pytest.raises(BadFrame):
        for chunk in split(bytes(stream), at):
            FrameSplitter.read(chunk.raw) if chunk.event else None


@given(objects.filter(bool), cuts, st.integers(1))
def test_a_stream_that_ends_within_a_frame_is_found(values: list[Any], at: list[int], less: int) -> None:
    frames = [chunk_frame(json.dumps(value).encode()) for value in values]
    stream = b"".join(frames)[: -(1 + less % (len(frames[-1]) - 1))]
    *whole, last = split(stream, at)
    assert [FrameSplitter.read(one.raw) for one in whole] == values[:-1]
    with pytest.raises(BadFrame):
        FrameSplitter.read(last.raw)


@given(cuts)
def test_a_frame_that_is_too_large_passes_in_pieces(at: list[int]) -> None:
    large = frame({":message-type": "event"}, b"x" * JSON_BYTES_MAX)
    small = chunk_frame(b'{"a": 1}')
    chunks = split(small + large + small, at)
    assert [FrameSplitter.read(one.raw) for one in chunks if one.event] == [{"a": 1}, {"a": 1}]


def test_exceptions_and_errors_are_events_and_other_frames_are_none() -> None:
    thrown = frame({":message-type": "exception", ":exception-type": "throttlingException"}, b'{"message": "slow"}')
    assert FrameSplitter.read(thrown) == {"type": "error", "error": {"type": "throttlingException", "message": "slow"}}
    failed = frame({":message-type": "error", ":error-code": "500", ":error-message": "broken"}, b"")
    assert FrameSplitter.read(failed) == {"type": "error", "error": {"type": "500", "message": "broken"}}
    assert FrameSplitter.read(frame({":message-type": "event", ":event-type": "initial-response"}, b"{}")) is None


def test_frames_of_amazons_own_tests_are_read() -> None:
    assert read_frame(ONE_HEADER) == ({"content-type": "application/json"}, b"{'foo':'bar'}")
    assert read_frame(ALL_HEADERS) == ({"7": "utf8"}, b"")
