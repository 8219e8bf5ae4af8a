"""The text that tells the dispositions of an event over the calls."""

from typing import Any

from palimpsest._model import decode
from palimpsest.types import EventOut, HistoryItem, LineOut

from palimpsest_tools.look.explain import about_lines, describe_call, describe_event, story


def item(number: int, disposition: str, **more: Any) -> HistoryItem:
    about = {"call_id": f"call-{number}", "created_at": f"2026-01-01T00:00:{number:02}.5+00:00", "view": "main"}
    made: HistoryItem = decode(HistoryItem, {**about, "epoch": 1, "cause": "start", "disposition": disposition, **more})
    return made


def event(seq: int, type: str, turn: int, tokens: int, **more: Any) -> EventOut:
    made: EventOut = decode(EventOut, {"seq": seq, "type": type, "turn": turn, "tokens": tokens, **more})
    return made


EVENT = event(7, "tool.result", 2, 1234, tool="read", content="a\n b " + "c" * 99)


def test_an_event_is_named_in_a_line() -> None:
    line = describe_event(EVENT)
    assert line.startswith('Event 7, tool.result of read, turn 2, 1,234 tokens: "a b ccc')
    assert line.endswith('…"')
    assert describe_event(event(1, "turn.end", 1, 0)) == "Event 1, turn.end, turn 1, 0 tokens"
    parts = [{"type": "image"}, {"type": "text", "text": "look"}]
    assert describe_event(event(1, "user.message", 1, 3, content=parts)).endswith(': "look"')


def test_only_changes_and_the_last_call_are_listed() -> None:
    stub = {"reducer": "retention", "reason": "older_than_5_turns", "epoch": 3, "cause": "budget"}
    items = [item(1, "verbatim"), item(2, "verbatim"), item(3, "stubbed", **stub), item(4, "stubbed", **stub)]
    lines = story(EVENT, items)
    assert lines == [
        "View main, 4 calls:",
        "  2026-01-01 00:00:01  call call-1  epoch 1 (start): shown whole",
        "  2026-01-01 00:00:03  call call-3  epoch 3 (budget): shown as a stub, by retention: older_than_5_turns",
        "  and so it was in the last call, call-4",
    ]
    assert len(story(EVENT, items, every=True)) == 5
    assert story(EVENT, []) == ["No recorded call has been made since."]


def test_views_are_distinguished() -> None:
    lines = story(EVENT, [item(1, "verbatim"), item(2, "dropped", reducer="cut", view="title")])
    assert [line for line in lines if line.startswith("View")] == ["View main, 1 call:", "View title, 1 call:"]
    assert any(line.endswith("left out, by cut") for line in lines)


def test_a_summary_is_named_once() -> None:
    for reason in ("summary s1", None):
        call = item(1, "summarized", reducer="fold", reason=reason, summary="s1")
        assert describe_call(call) == "told of by a summary, by fold: summary s1"


def line(number: int, head: int, parent: int | None = None, at: int | None = None, **more: Any) -> LineOut:
    own = None if parent is None else f"s@line.{parent}"
    about = {"id": f"s@line.{number}", "head": head, "parent": own, "at": at, "current": False}
    made: LineOut = decode(LineOut, {**about, **more})
    return made


def test_other_lines_of_the_session_are_listed_with_how_to_read_them() -> None:
    lines = [line(1, 30), line(2, 26, 1, 10), line(3, 9, 2, 8), line(4, 12, 2, 11, current=True)]
    assert about_lines(lines, "s", 9) == [
        "Read on s@line.4 (events 1 to 12), the current line of s. Other lines of the session:",
        "  s@line.3 (events 1 to 9): its own event 9: palimpsest explain s@line.3 9",
        "  s@line.2 (events 1 to 26): the same event; its calls: palimpsest explain s@line.2 9",
        "  s@line.1 (events 1 to 30): the same event; its calls: palimpsest explain s@line.1 9",
    ]
    read = about_lines(lines, "s@line.1", 11)
    assert read[0] == "Read on s@line.1 (events 1 to 30), not the current line of s. Other lines of the session:"
    assert read[1].startswith("  s@line.4 (events 1 to 12, current): its own event 11")
    assert read[2].endswith("s@line.3 (events 1 to 9): no such event")
    assert about_lines([line(1, 30, current=True)], "s", 9) == []


def test_only_the_newest_of_many_lines_are_listed() -> None:
    said = about_lines([line(number, 5, current=number == 40) for number in range(1, 41)], "s", 5)
    assert (len(said), said[-1]) == (12, "  and 29 older ones: GET /v1/sessions/s/lines")
