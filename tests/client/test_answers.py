"""Responses as values: typed, tolerant of other server versions, and convertible back to JSON."""

from datetime import UTC, datetime

import pytest
from palimpsest import PalimpsestError
from palimpsest._model import decode
from palimpsest._sse import EVENT_BYTES_MAX, Decoder, Message
from palimpsest.types import DiffOut, EventOut, SessionOut, ToolsOut

SESSION = {
    "id": "s",
    "head": 3,
    "policy": {"name": "default", "version": 1},
    "tokens": {"log": 10, "context": 5},
    "metadata": {"a": [1]},
    "created_at": "2026-11-22T21:21:00.738936Z",
    "updated_at": "2026-11-22T21:21:00.738936+00:00",
    "made_up": {"by": "a newer server"},
}


def test_an_answer_is_typed_throughout() -> None:
    session: SessionOut = decode(SessionOut, SESSION)
    assert session.policy.name == "default"
    assert session.created_at == session.updated_at == datetime(2026, 11, 22, 21, 21, 0, 738936, UTC)
    assert session.metadata == {"a": [1]}
    assert session.parent is None  # missing, as from a server that does not know it
    with pytest.raises(AttributeError):
        session.head = 4  # type: ignore[misc]


def test_unknown_fields_of_a_newer_server_are_kept() -> None:
    session = decode(SessionOut, SESSION)
    assert session.made_up == {"by": "a newer server"}
    assert session.to_dict() == SESSION
    with pytest.raises(AttributeError, match="SessionOut has no field 'made_down'"):
        _ = session.made_down


def test_names_that_python_cannot_have_are_written_otherwise() -> None:
    change = {"from_seq": 1, "to_seq": 2, "change": "changed", "from": "verbatim", "to": "stubbed"}
    diff: DiffOut = decode(DiffOut, {"changes": [change]})
    assert (diff.changes[0].from_, diff.changes[0].to) == ("verbatim", "stubbed")
    tools: ToolsOut = decode(ToolsOut, {"openai": {}, "openai-responses": {"name": "recall"}, "anthropic": {}})
    assert tools.openai_responses == {"name": "recall"}


def test_an_invalid_time_stays_a_string() -> None:
    event = decode(EventOut, {"seq": 1, "occurred_at": "last spring", "created_at": "2026-11-22T21:21:00Z"})
    assert event.occurred_at == "last spring"
    assert event.created_at.year == 2026


def test_a_stream_is_decoded_line_by_line() -> None:
    decoder = Decoder()
    lines = [": keep-alive", "", "retry: 250", "", "event: appended", "data: {", "data:}", "id: 1-0-x", "", "id: 2", ""]
    assert [message for line in lines if (message := decoder.feed(line))] == [Message("appended", "{\n}", "1-0-x")]
    assert (decoder.retry_seconds, decoder.last_id) == (0.25, "2")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("size", [1, 3, 1_000])
def test_a_stream_is_decoded_in_whatever_pieces_it_comes(end: str, size: int) -> None:
    text = end.join(
        [": keep-alive", "", "event: appended", "data: {\u00e9", "data:}", "id: 1-0-x", "", "data: 2", "", ": x"]
    )
    stream = text.encode()
    decoder = Decoder()
    pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
    found = [message for piece in pieces for message in decoder.read(piece)]
    assert found == [Message("appended", "{\u00e9\n}", "1-0-x"), Message("message", "2", "1-0-x")]


@pytest.mark.parametrize("piece", [b"x" * 1_000_000, b"data: " + b"x" * 1_000_000 + b"\n"])
def test_an_event_without_an_end_is_not_kept_for_ever(piece: bytes) -> None:
    decoder, fed = Decoder(), 0
    with pytest.raises(PalimpsestError, match="more than"):
        while fed < 2 * EVENT_BYTES_MAX:
            fed += len(piece)
            assert not list(decoder.read(piece))
    assert fed <= EVENT_BYTES_MAX + len(piece)
