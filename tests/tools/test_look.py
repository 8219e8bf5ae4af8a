"""The tables of sessions, calls and events."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from palimpsest._model import decode
from palimpsest.types import CallItem, EventOut, SessionOut

from palimpsest_tools.look import calls, events, sessions
from palimpsest_tools.look.calls import RecordedCalls
from palimpsest_tools.output import Column, cut, duration, printable, table


def test_a_table_is_aligned_and_its_last_column_cut() -> None:
    columns = (Column("NAME"), Column("SIZE", figures=True), Column("TEXT"))
    rows = [("a", "1", "short"), ("wide 漢字", "1,000", "a text that is too long for its column")]
    assert table(columns, rows, width=36) == [
        "NAME        SIZE  TEXT",
        "a              1  short",
        "wide 漢字  1,000  a text that is to…",
    ]


def test_no_text_of_a_log_reaches_the_terminal_as_a_command() -> None:
    assert printable("a\x1b[2J\r\n\tb") == "a�[2J b"
    assert table((Column("X"),), [("\x1b]0;title\x07",)])[1] == "�]0;title�"
    assert cut("漢字漢字", 5) == "漢字…"


def session(name: str, **more: Any) -> SessionOut:
    time = "2026-01-01T12:00:00Z"
    about = {"head": 4, "turns": 1, "model": None, "metadata": {}, "tokens": {"log": 1234, "context": 56}}
    made: SessionOut = decode(SessionOut, {"id": name, "updated_at": time, **about, **more})
    return made


def test_sessions_are_listed_with_their_sizes_and_ages() -> None:
    now = datetime(2026, 1, 1, 15, 4, tzinfo=UTC)
    lines = sessions.describe([session("demo", model="gpt-4o"), session("a:b", head=1000)], now, 80)
    assert lines == [
        "SESSION  MODEL   EVENTS  TURNS    LOG  CONTEXT  CHANGED",
        "demo     gpt-4o       4      1  1,234       56  3 hours ago",
        "a:b      -        1,000      1  1,234       56  3 hours ago",
    ]
    assert sessions.describe([], now, 80) == []
    named = sessions.describe([session("a", metadata={"user": "Ann", "tags": ["x"]}), session("b")], now, 120)
    assert named[0].endswith("CHANGED      METADATA")
    assert named[1].endswith('3 hours ago  user: Ann, tags: ["x"]')
    assert named[2].endswith("3 hours ago")


@pytest.mark.parametrize(
    ("elapsed", "text"),
    [(-5, "0 seconds"), (59, "59 seconds"), (60, "1 minute"), (7200, "2 hours"), (86_400, "1 day")],
)
def test_a_duration_has_its_largest_unit(elapsed: int, text: str) -> None:
    assert duration(timedelta(seconds=elapsed)) == text


def test_a_session_is_found_by_its_id_model_or_metadata() -> None:
    one = session("support-7", model="claude-x", metadata={"user": "Ann"})
    assert all(sessions.has_text(one, text) for text in ("SUPPORT", "claude", "ann"))
    assert not sessions.has_text(one, "bob")


def test_sessions_that_are_not_listed_are_counted() -> None:
    assert sessions.remarks(0, 0, 20, None, more=False) == ["no sessions"]
    assert sessions.remarks(9, 0, 20, "x", more=False) == ["no session has 'x' in its id, model or metadata"]
    assert sessions.remarks(1000, 30, 20, "x", more=True) == [
        "20 of 30 sessions, the last changed ones; --limit shows more",
        "only the 1,000 sessions that were created last were read; there are older ones",
    ]


def call(id: str, view: str = "main", epoch: int = 1, **more: Any) -> CallItem:
    about = {"estimate": 1000, "target": 2000, "evicted_tokens": 0, "outcome": None, "overflow": False}
    place = {"call_id": id, "created_at": "2026-01-02T03:04:05.6Z", "line": "s@line.1", "view": view, "epoch": epoch}
    made: CallItem = decode(CallItem, {**place, **about, "input_tokens": None, "retry_of": None, **more})
    return made


RECORDED = RecordedCalls.of("s@line.1", [call("d", epoch=2), call("c", "title"), call("b"), call("a")])


def test_calls_are_numbered_by_view_in_the_order_of_time() -> None:
    assert [(one.number, one.call.call_id, one.opens) for one in RECORDED.of_view("main")] == [
        (1, "a", True),
        (2, "b", False),
        (3, "d", True),
    ]
    assert RECORDED.views == {"main": 3, "title": 1}


@pytest.mark.parametrize(
    ("wanted", "view", "id"),
    [
        (None, None, "d"),
        ("2", None, "b"),
        ("1", "title", "c"),
        ("c", None, "c"),
        ("4", None, None),
        ("x", None, None),
        (None, "other", None),
    ],
)
def test_a_call_is_found_by_its_number_or_its_id(wanted: str | None, view: str | None, id: str | None) -> None:
    found = RECORDED.find(wanted, view)
    assert (found and found.call.call_id) == id


def test_without_calls_of_the_main_view_the_last_called_view_is_meant() -> None:
    assert RecordedCalls.of("s@line.1", [call("b", "title"), call("a", "other")]).default_view() == "title"
    assert RecordedCalls.of("s@line.1", []).default_view() == "main"


def test_a_missing_call_is_answered_with_those_that_there_are() -> None:
    assert calls.missing_call(RecordedCalls.of("s@line.1", []), "s", None, None) == "session 's' has no recorded calls"
    assert calls.missing_call(RECORDED, "s", "9", None) == "view 'main' has no call 9; its recorded calls are 1 to 3"
    assert calls.missing_call(RECORDED, "s", None, "x") == (
        "session 's' has no recorded calls of view 'x'; --view main has 3 calls, --view title has 1 call"
    )
    assert "palimpsest calls s" in calls.missing_call(RECORDED, "s", "0-0", None)


OUTCOME = {"reported_at": "2026-01-02T03:04:06Z", "usage": {}, "latency_ms": None, "overflow": False}


def test_the_table_of_calls_names_epochs_at_their_first_call_and_outcomes() -> None:
    refused = call("c", epoch=2, overflow=True, outcome=OUTCOME | {"error": {"status": 400}, "overflow": True})
    retried = call("d", epoch=3, retry_of="c", input_tokens=1100, outcome=OUTCOME | {"error": None})
    failed = call("e", epoch=3, outcome=OUTCOME | {"error": {"status": 529}})
    recorded = RecordedCalls.of("s@line.1", [failed, retried, refused, call("a")])
    causes = {("s@line.1", "main", 1): "start", ("s@line.1", "main", 2): "budget", ("s@line.1", "main", 3): "overflow"}
    lines = calls.describe(recorded.calls, causes, {one.call.call_id: one.number for one in recorded.calls}, 160)
    assert lines == [
        "CALL  TIME (UTC)      EPOCH  OPENED BY  ESTIMATE  TARGET  REPORTED  LEFT OUT  OUTCOME         ID",
        "   1  01-02 03:04:05      1  start         1,000   2,000         -         0                  a",
        "   2  01-02 03:04:05      2  budget        1,000   2,000         -         0  too long        c",
        "   3  01-02 03:04:05      3  overflow      1,000   2,000     1,100         0  ok, retry of 2  d",
        "   4  01-02 03:04:05      3                1,000   2,000         -         0  error 529       e",
    ]
    narrow = calls.describe(recorded.calls, causes, {}, 80)
    assert narrow[0].endswith("OUTCOME")


def test_each_line_numbers_its_own_calls() -> None:
    newest_first = [call("d", line="s@line.2"), call("c"), call("b", line="s@line.2"), call("a")]
    recorded = RecordedCalls.of("s@line.2", newest_first)
    assert [(one.number, one.call.call_id) for one in recorded.of_view("main")] == [(1, "b"), (2, "d")]
    assert [found.call.call_id for id in ("2", "c", None) if (found := recorded.find(id, None))] == ["d", "c", "d"]
    other = "other lines of the session: s@line.1 has 2 calls"
    assert calls.remarks(recorded, "main", 2) == [other]
    empty = RecordedCalls.of("s@line.3", newest_first)
    assert (
        calls.missing_call(empty, "s", None, None)
        == f"session 's' has no recorded calls; {other}, s@line.2 has 2 calls"
    )


def test_other_views_and_earlier_calls_are_counted() -> None:
    assert calls.remarks(RECORDED, "main", 2) == [
        "the last 2 of 3 calls of view main; --limit shows more",
        "other views: --view title has 1 call",
    ]
    assert calls.remarks(RECORDED, "title", 1) == ["other views: --view main has 3 calls"]


def event(seq: int, type: str = "user.message", **more: Any) -> EventOut:
    made: EventOut = decode(EventOut, {"seq": seq, "type": type, "turn": 1, "tokens": 9, **more})
    return made


@pytest.mark.parametrize(
    "more",
    [
        {"content": 'Use  the\n"Blue"   key.'},
        {"content": [{"type": "image"}, {"type": "text", "text": 'the "blue" key'}]},
        {"content": [{"type": "thinking", "thinking": 'which? the "blue" key'}]},
        {"arguments": {"text": 'the\n"blue" key'}},
        {"arguments": {"edits": [{"text": 'the "blue" key'}]}},
        {"arguments": '{"text": "the\\n\\"blue\\" key"}'},
        {"arguments": 'the "blue" key, not as JSON'},
        {"path": 'the "blue" key.txt'},
    ],
)
def test_a_text_is_found_wherever_an_event_holds_it(more: dict[str, Any]) -> None:
    text = events.event_text(event(1, **more))
    assert events.find_text(text, 'the "blue" key') is not None
    assert events.find_text(text, "the blue key") is None


def test_an_excerpt_shows_the_text_that_was_found() -> None:
    text = "before " * 40 + "the needle" + " after" * 40
    shown = events.excerpt(text, "NEEDLE", 60)
    assert "the needle" in shown
    assert (shown[0], shown[-1], len(shown)) == ("…", "…", 60)
    assert events.excerpt("short", None, 60) == "short"
    assert events.find_text("anything", "  ") is None


def test_events_are_listed_with_their_seqs() -> None:
    listed = [event(9, content="Hello\nthere"), event(10, "tool.call", tool="read", arguments={"path": "a.py"})]
    assert events.describe(listed, None, 80) == [
        "SEQ  TURN  TYPE            TOKENS  TEXT",
        "  9     1  user.message         9  Hello there",
        " 10     1  tool.call read       9  path: a.py",
    ]
    assert events.describe([], None, 80) == []


def test_a_search_says_how_far_it_went() -> None:
    whole, part = events.FoundEvents((), 1, 50), events.FoundEvents((event(41), event(42)), 31, 50)
    assert events.remarks(whole, 0, 50, "x", after=None) == ["no events with 'x'"]
    assert events.remarks(part, 1, 50, "x", after=None) == [
        "1 of 2 events found; --limit shows more",
        "only events 31 to 50 of 50 were searched; see --after",
    ]
    assert events.remarks(part, 2, 50, None, after=30) == []
    assert events.remarks(part, 2, 60, None, after=30) == ["only events 31 to 50 of 60 were searched; see --after"]
